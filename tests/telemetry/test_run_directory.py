"""A run directory belongs to one run and one process, and can be cut back to any step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.telemetry.jsonl import JsonlWriter, read_jsonl
from slipstream.telemetry.rollouts import read_rollouts
from slipstream.telemetry.run_directory import RunDirectory
from tests.telemetry.synthetic import Shape, make_run

HOLDER = """
import sys, time
from pathlib import Path
from slipstream.telemetry.run_directory import RunDirectory
RunDirectory.open(Path(sys.argv[1])).lock()
print("locked", flush=True)
time.sleep(60)
"""


def test_create_makes_the_layout_and_open_finds_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a" / "run", "[run]\nseed = 1\n")
    assert run.config.read_text() == "[run]\nseed = 1\n"
    assert all(directory.is_dir() for directory in (run.rollouts, run.checkpoints, run.logs))
    names = [path.name for path in (run.journal, run.metrics, run.events, run.evaluations, run.trace, run.report)]
    assert names == ["journal.sqlite", "metrics.jsonl", "events.jsonl", "eval.jsonl", "trace.json", "report.html"]
    assert RunDirectory.open(run.path).path == run.path


def test_create_refuses_a_directory_with_a_run(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "seed = 1\n")
    with pytest.raises(UsageError, match=rf"{tmp_path} already holds a run; .*--resume.*--run-dir"):
        RunDirectory.create(tmp_path, "seed = 2\n")
    assert (tmp_path / "run.toml").read_text() == "seed = 1\n"


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        RunDirectory.open(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        RunDirectory.open(tmp_path / "absent")


def test_one_process_at_a_time_and_a_killed_one_frees_the_directory(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match=f"in use by process {holder.pid}"):
            run.lock()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    run.lock()
    assert (tmp_path / "run.lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        RunDirectory.open(tmp_path).lock()
    run.release()
    run.release()
    run.lock()
    run.release()


def test_truncate_after_keeps_what_belongs_to_the_steps_before(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=5, rollouts_per_step=8, slots=2))
    events = run.events.read_bytes()
    evaluations = JsonlWriter(run.evaluations)
    evaluations.write({"step": 5})
    evaluations.close()
    for path in (run.metrics, run.events, run.evaluations):
        with path.open("ab") as file:
            file.write(b'{"step": 2, "torn')
    (run.rollouts / ".000004.parquet.123.tmp").write_bytes(b"half")
    for _ in range(2):
        run.truncate_after(3)
        assert [row["step"] for row in read_jsonl(run.metrics)] == [1, 2, 3]
        assert [row["step"] for row in read_jsonl(run.evaluations)] == [0]
        assert sorted(path.name for path in run.rollouts.iterdir()) == ["000000.parquet", "000001.parquet", "000002.parquet"]
        assert run.events.read_bytes() == events
        assert run.metrics.read_bytes().endswith(b"}\n")
    assert read_rollouts(run.rollouts, ["step"])["step"].to_pylist() == [step for step in range(3) for _ in range(8)]


def test_truncate_after_zero_leaves_the_evaluation_before_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=2, rollouts_per_step=8, slots=2))
    run.truncate_after(0)
    assert read_jsonl(run.metrics) == []
    assert [row["step"] for row in read_jsonl(run.evaluations)] == [0]
    assert list(run.rollouts.iterdir()) == []
