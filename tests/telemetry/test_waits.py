"""The wait-for graph of a run's moment, and the root cause at its end. By hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.core.errors import RunFailed
from slipstream.telemetry.status import FlowStatus, GradingStatus, RoleStatus, RunStatus, read_status, write_status
from slipstream.telemetry.waits import NOBODY, explain


def role(name: str, phase: str, phase_s: float = 5.0, heard_s: float = 0.0) -> RoleStatus:
    return RoleStatus(role=name, kind=name.split("-")[0], phase=phase, phase_s=phase_s, heard_s=heard_s)


def moment(*roles: RoleStatus, fixed: bool = False, complete: int = 2, claimable: int = 0, **leased: int) -> RunStatus:
    workers = {name.replace("_", "-"): count for name, count in leased.items()}
    flow = FlowStatus(version=3, steps=9, eta=1, needed=4, complete=complete, fixed=fixed, leased=workers, claimable=claimable)
    return RunStatus(time=60.0, unix_s=1e9, roles=roles, flow=flow)


def test_a_learner_waits_for_the_sampler_that_takes_longest() -> None:
    found = explain(
        moment(role("learner", "wait"), role("sampler-0", "generate", 2.0), role("sampler-1", "grade", 40.0), sampler_0=1, sampler_1=1)
    )
    assert [(wait.who, wait.on) for wait in found.waits] == [("learner", "sampler-0"), ("learner", "sampler-1")]
    assert found.waits[0].why == "batch 3 has 2 of its 4 groups; it works on 1"
    assert found.root == "sampler-1 is in phase 'grade', for 40.0 s now"


def test_samplers_that_are_far_enough_ahead_wait_for_the_learner() -> None:
    found = explain(moment(role("learner", "step", 7.0), role("sampler-0", "wait"), fixed=True, complete=0))
    assert [(wait.who, wait.on) for wait in found.waits] == [("sampler-0", "learner")]
    assert "all that may be sampled before version 4 is claimed (eta = 1)" in found.waits[0].why
    assert found.root == "learner is in phase 'step', for 7.0 s now"


def test_a_sampler_that_is_not_heard_of_is_the_root_even_if_others_work() -> None:
    statuses = (role("learner", "wait"), role("sampler-0", "generate", 99.0), role("sampler-1", "generate", 3.0, heard_s=45.0))
    assert explain(moment(*statuses, sampler_0=1, sampler_1=1)).root == (
        "sampler-1 has not been heard of for 45 s; it was in phase 'generate'"
    )


def test_tickets_of_a_worker_that_is_gone_come_back_when_its_lease_ends() -> None:
    assert explain(moment(role("learner", "wait"), sampler_7=2)).root == (
        "sampler-7 holds tickets and is not here; they come back when its lease ends"
    )


def test_without_samplers_nobody_is_the_root() -> None:
    found = explain(moment(role("learner", "wait"), claimable=2))
    assert found.waits[0].on == NOBODY
    assert found.root == "learner waits: batch 3 has 2 of its 4 groups; no sampler is here"


@pytest.mark.parametrize(
    ("grading", "graders", "root"),
    [
        (GradingStatus(waiting={"sampler-0": 7}, queued=7), [], "sampler-0 waits: 7 verdicts are wanted; no grader is here"),
        (
            GradingStatus(waiting={"sampler-0": 7}, queued=7),
            [role("grader-0", "start", 9.0)],
            "grader-0 is in phase 'start', for 9.0 s now",
        ),
        (
            GradingStatus(waiting={"sampler-0": 7}, held={"grader-1": 5}, queued=2),
            [role("grader-0", "wait"), role("grader-1", "judge", 40.0)],
            "grader-1 is in phase 'judge', for 40.0 s now",
        ),
    ],
)
def test_a_sampler_without_verdicts_waits_for_the_graders(grading: GradingStatus, graders: list[RoleStatus], root: str) -> None:
    found = explain(replace(moment(role("learner", "wait"), role("sampler-0", "wait"), *graders, sampler_0=2), grading=grading))
    assert found.root == root


def test_without_a_learner_that_is_the_root() -> None:
    assert "no learner is here" in explain(moment(role("sampler-0", "wait"))).root


def test_a_circle_is_called_a_deadlock() -> None:
    found = explain(moment(role("learner", "wait"), role("sampler-0", "wait"), sampler_0=2))
    assert found.root == "learner waits for sampler-0 waits for learner: a deadlock, which is a bug; please report it"


def test_the_end_of_a_run_and_evaluators_at_rest_hold_nobody_up() -> None:
    over = FlowStatus(version=9, steps=9, eta=1, needed=4, complete=0, fixed=False)
    found = explain(
        RunStatus(time=1.0, unix_s=1.0, roles=(role("learner", "ended"), role("evaluator", "wait"), role("sampler-0", "wait")), flow=over)
    )
    assert [(wait.who, wait.on, wait.why) for wait in found.waits] == [("sampler-0", NOBODY, "the run is over")]
    assert found.root == "learner is in phase 'ended', for 5.0 s now"


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_status(tmp_path / "status.json") is None
    graded = replace(moment(), grading=GradingStatus(waiting={"sampler-0": 1}, held={"grader-0": 1}, oldest_s=2.5))
    for status in (moment(role("learner", "wait"), sampler_0=1), graded, RunStatus(time=1.0, unix_s=2.0, roles=(), flow=None)):
        write_status(tmp_path / "status.json", status)
        assert read_status(tmp_path / "status.json") == status
    (tmp_path / "status.json").write_text('{"roles": 3}')
    with pytest.raises(RunFailed, match=r"status.json cannot be read"):
        read_status(tmp_path / "status.json")
