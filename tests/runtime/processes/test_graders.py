"""Graders that are killed and frozen with replies in hand: the run ends with the weights of one whose sampler has judged by itself."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.telemetry.status import read_status
from tests.runtime.processes.supervised import Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, run, sets


@pytest.mark.slow
def test_graders_killed_and_frozen_at_work_change_nothing(
    undisturbed: Callable[[str], Path], supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    """One has replies in its hands while it is frozen for longer than its lease, the other is killed meanwhile."""
    expected = undisturbed("lagged1")
    one = supervised(tmp_path / "run", (), 1, str(TINY), *sets(MODES["lagged1"]), "--graders", "2")

    holders: list[str] = []

    def held() -> bool:
        status = read_status(tmp_path / "run" / "status.json")
        holders.extend(status.grading.held if status and status.grading else ())
        return bool(holders)

    one.wait_steps(1)
    one.send("learner", signal.SIGSTOP)  # so that the run cannot end before
    for grader in ("grader-0", "grader-1"):
        one.send(grader, signal.SIGSTOP)
    one.send("learner", signal.SIGCONT)
    one.wait("replies in the hands of one that is frozen", held)  # in answer to its last call
    roles = {row["worker"]: row["name"] for row in one.events("joined") if row["name"].startswith("grader")}  # in the order of joining
    frozen = holders[0]
    (killed,) = roles.keys() - {frozen}
    one.kill(roles[killed])
    one.wait("the end of the frozen one's lease", lambda: bool(one.events("lease_ended", worker=frozen)))
    one.send(roles[frozen], signal.SIGCONT)
    one.finish()
    assert_same_end(tmp_path / "run", expected)
    assert one.events("role_died", name=roles[killed], signal="SIGKILL")
    assert one.events("joined", worker=killed, epoch=2)
    assert one.events("span", role=killed, phase="judge")  # a lane of the report


def test_graders_that_do_not_go_with_the_run_are_one_clear_error(tmp_path: Path) -> None:
    begin = (str(TINY), "--on", "processes")
    for arguments, words in (
        ((str(TINY), "--graders", "1"), "--graders 1 needs --on processes"),
        ((*begin, "--graders", "1", "--set", "grading.on=samplers"), "--graders 1 does not go with grading.on = 'samplers'"),
        ((*begin, "--graders", "0", "--set", "grading.on=graders"), "--graders 0 does not go with grading.on = 'graders'"),
    ):
        assert words in run(tmp_path / "run", *arguments, code=2)
        assert not (tmp_path / "run").exists()
