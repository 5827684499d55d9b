"""Sync and lagged runs give the same bits again: undisturbed, killed and resumed, stopped and resumed. Real processes, real signals."""

import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slipstream.runtime import replay
from slipstream.runtime.chaos.promises import final_weights
from tests.runtime.runs import MODES, TINY, finish, rows, run, sets, signal_after, start, tiny

TIMED = {*replay.TIMED, *replay.OF_THE_SAMPLER}
DETERMINISTIC = ("lagged1", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("sync", "lagged2")))


def learned(run_dir: Path) -> list[dict]:
    """The metrics without what depends on time."""
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows(run_dir / "metrics.jsonl")]


def scores(run_dir: Path) -> list[tuple]:
    return sorted((row["step"], row["pass@1"]) for row in rows(run_dir / "eval.jsonl"))


def drawn(run_dir: Path) -> list[list]:
    """Every rollout's identity, tokens, log-probs and versions, in training order."""
    columns = ["step", "ticket_index", "sample_index", "seed", "completion_ids", "logprobs", "versions", "reward", "advantage"]
    return [row for path in sorted((run_dir / "rollouts").iterdir()) for row in pq.read_table(path, columns=columns).to_pylist()]


def assert_same_run(one: Path, other: Path) -> None:
    assert final_weights(one) == final_weights(other)
    assert learned(one) == learned(other)
    assert scores(one) == scores(other)
    assert drawn(one) == drawn(other)


@pytest.mark.parametrize("mode", ["sync", "lagged1"])
def test_two_runs_with_one_seed_are_equal_to_the_bit(mode: str, undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    tiny(tmp_path / "again", MODES[mode])
    assert_same_run(undisturbed(mode), tmp_path / "again")


def test_another_seed_gives_another_run(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    tiny(tmp_path / "other", [*MODES["sync"], "run.seed=1"])
    assert final_weights(undisturbed("sync")) != final_weights(tmp_path / "other")


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_a_killed_and_resumed_run_equals_the_undisturbed_one(mode: str, undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed, str(TINY), *sets(MODES[mode]))
    signal_after(process, killed, 5, signal.SIGKILL)  # checkpoints are at 0, 3, 6, ...: later steps are lost or half done
    process.communicate()
    run(killed, "--resume")
    assert_same_run(undisturbed(mode), killed)


@pytest.mark.slow
def test_killed_twice_still_equals_the_undisturbed_run(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed, str(TINY), *sets(MODES["lagged1"]))
    for steps in (2, 8):
        signal_after(process, killed, steps, signal.SIGKILL)
        process.communicate()
        process = start(killed, "--resume")
    finish(process)
    assert_same_run(undisturbed("lagged1"), killed)


def test_ctrl_c_keeps_everything_and_resume_ends_equal(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    process = start(stopped, str(TINY), *sets(MODES["lagged1"]))
    signal_after(process, stopped, 4, signal.SIGINT)
    message = finish(process, code=130)
    assert "stopped by SIGINT after step" in message
    assert "--resume" in message
    assert "Traceback" not in message
    run(stopped, "--resume")
    assert_same_run(undisturbed("lagged1"), stopped)


def test_killed_in_the_warm_start_begins_again_and_ends_equal(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed, str(TINY), *sets(MODES["sync"]))
    while not rows(killed / "events.jsonl"):
        assert process.poll() is None
    process.kill()
    process.communicate()
    run(killed, "--resume")
    assert_same_run(undisturbed("sync"), killed)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed, str(TINY), *sets(MODES["sync"]))
    signal_after(process, killed, 7, signal.SIGKILL)
    process.communicate()
    newest = max(path for path in (killed / "checkpoints").iterdir() if path.name.isdigit())
    damaged = bytearray((newest / "params.safetensors").read_bytes())
    damaged[-1] ^= 1
    (newest / "params.safetensors").write_bytes(damaged)
    run(killed, "--resume")
    assert_same_run(undisturbed("sync"), killed)


def test_resuming_a_finished_run_changes_nothing(undisturbed: Callable[[str], Path]) -> None:
    directory = undisturbed("sync")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.suffix in (".jsonl", ".html", ".parquet")}
    assert "already finished: 12 steps are done" in run(directory, "--resume")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_resume_goes_on(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    process = start(stopped, str(TINY), *sets(MODES["sync"]))
    signal_after(process, stopped, 4, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    message = finish(process, code=130)
    assert "SIGINT: stopping after this step" in message
    assert "Traceback" not in message
    run(stopped, "--resume")
    assert_same_run(undisturbed("sync"), stopped)
