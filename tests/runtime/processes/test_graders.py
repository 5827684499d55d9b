"""Graders that are killed and frozen with replies in hand: the run ends with the weights of one whose sampler has judged by itself."""

import signal
from collections.abc import Callable
from pathlib import Path

from slipstream.telemetry.status import read_status
from tests.runtime.processes.supervised import Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, run, sets


def test_graders_killed_and_frozen_at_work_change_nothing(
    undisturbed: Callable[[str], Path], supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    expected = undisturbed("lagged1")
    one = supervised(tmp_path / "run", (), 1, str(TINY), *sets(MODES["lagged1"]), "--graders", "2")

    def held() -> dict[str, int]:
        status = read_status(tmp_path / "run" / "status.json")
        return dict(status.grading.held) if status and status.grading else {}

    one.wait_steps(1)
    one.send("learner", signal.SIGSTOP)  # so that the run cannot end before
    for grader in ("grader-0", "grader-1"):
        one.send(grader, signal.SIGSTOP)
    one.send("learner", signal.SIGCONT)
    one.wait("replies in the hands of both", lambda: held().keys() == {"grader-0", "grader-1"})  # in answer to their last calls
    one.kill("grader-0")
    one.wait("the end of the other's lease", lambda: bool(one.events("lease_ended", worker="grader-1")))
    one.send("grader-1", signal.SIGCONT)
    one.finish()
    assert_same_end(tmp_path / "run", expected)
    assert one.events("role_died", name="grader-0", signal="SIGKILL")
    assert one.events("joined", worker="grader-0", epoch=2)
    assert one.events("span", role="grader-0", phase="judge")  # a lane of the report


def test_graders_that_do_not_go_with_the_run_are_one_clear_error(tmp_path: Path) -> None:
    begin = (str(TINY), "--on", "processes")
    for arguments, words in (
        ((str(TINY), "--graders", "1"), "--graders 1 needs --on processes"),
        ((*begin, "--graders", "1", "--set", "grading.on=samplers"), "--graders 1 does not go with grading.on = 'samplers'"),
        ((*begin, "--graders", "0", "--set", "grading.on=graders"), "--graders 0 does not go with grading.on = 'graders'"),
    ):
        assert words in run(tmp_path / "run", *arguments, code=2)
        assert not (tmp_path / "run").exists()
