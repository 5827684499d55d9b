"""Roles that are killed and frozen: the run ends at its last step, in the deterministic modes with the weights of an undisturbed one.

The undisturbed runs are embedded ones, so these tests also say that processes are no second implementation.
"""

import signal
from collections.abc import Callable
from pathlib import Path

from slipstream.runtime.chaos.promises import final_weights
from tests.runtime.processes.supervised import Supervised
from tests.runtime.runs import MODES, rows, run
from tests.runtime.test_repeatable import drawn, scores


def assert_same_end(run_dir: Path, undisturbed: Path, steps: int = 12) -> None:
    assert final_weights(run_dir) == final_weights(undisturbed)
    assert drawn(run_dir) == drawn(undisturbed)
    assert scores(run_dir) == scores(undisturbed)
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == list(range(1, steps + 1))


def test_every_role_killed_in_one_run_ends_with_the_weights_of_an_undisturbed_one(
    undisturbed: Callable[[str], Path], supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    expected = undisturbed("lagged1")  # first: its compiled programs are everybody's
    one = supervised(tmp_path / "run", MODES["lagged1"])
    one.wait_steps(1)
    one.send("learner", signal.SIGSTOP)  # so that the run cannot end before all are killed
    for role in ("sampler-0", "coordinator", "learner"):
        one.kill(role)
    errors = one.finish()
    assert "learner died: signal SIGKILL" in errors
    assert_same_end(tmp_path / "run", expected)
    died = one.events("role_died", name="learner")[0]
    assert died["signal"] == "SIGKILL"
    assert died["peak_bytes"] > 50e6
    assert any("reinforcement learning" in line for line in died["last_lines"])
    assert [row["term"] for row in one.events("run_started")] == [1, 2]
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "logs" / "sampler-1.log").exists()


def test_a_role_that_cannot_begin_ends_the_run_with_its_words(tmp_path: Path) -> None:
    errors = run(tmp_path / "run", "sums", "--set", "model.source.path=/nowhere", "--on", "processes", code=2)
    assert "model.source.path = '/nowhere' is no model directory" in errors
    assert "logs/coordinator.log" in errors
    assert "Traceback" not in errors
