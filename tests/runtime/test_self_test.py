"""Every run tests its sampler before the first ticket; a sampler that fails stops the run with the cause."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from slipstream.config.load import load_config
from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind, SampleRequest
from slipstream.engine.engine import Engine
from slipstream.envs.grading import RowGrader, row_grader
from slipstream.envs.rows import Rows
from slipstream.runtime.grader_check import check_grader
from slipstream.runtime.policy import open_policy
from slipstream.runtime.self_test import check_before_run
from slipstream.telemetry.events import EventLog
from slipstream.telemetry.jsonl import JsonlWriter
from slipstream.train.learner import Learner
from tests.runtime.runs import TINY, rows


class Greedy(Engine):
    def submit(self, request: SampleRequest) -> None:
        super().submit(replace(request, top_k=1))


def test_findings_of_a_run_come_after_the_load_and_before_the_first_sample(undisturbed: Callable[[str], Path]) -> None:
    events = rows(undisturbed("inflight2") / "events.jsonl")
    kinds = [event["kind"] for event in events if event["role"] == "sampler-0"]
    found = [event for event in events if event["kind"] == "conformance"]
    assert kinds[: len(found) + 2] == ["load", "warm_up", *["conformance"] * len(found)]
    assert {event["verdict"] for event in found} <= {"passed", "unclear"}
    assert {"records", "seeds differ", "seeds repeat", "greedy", "log-probs at temperature 1"} <= {event["check"] for event in found}


def test_a_sampler_that_is_greedy_in_disguise_stops_the_run(tmp_path: Path) -> None:
    config = load_config(str(TINY))
    policy = open_policy(config)
    learner = Learner(config, policy.spec, policy.params)
    learner.begin_reinforcement()
    engine = Greedy(policy.spec, id="sampler-0", clock=ManualClock(), slots=64, max_tokens=32, tokens_per_dispatch=2)
    writer = JsonlWriter(tmp_path / "events.jsonl")
    with pytest.raises(RunFailed, match=r"sampler-0 fails its self-test, .*log-probs at temperature 1: stored log-probs differ"):
        check_before_run(config, policy.spec, policy.task, engine, learner, EventLog(writer, ManualClock()))
    writer.close()
    failed = [event for event in rows(tmp_path / "events.jsonl") if event.get("verdict") == "failed"]
    assert {"log-probs at temperature 0.5", "log-probs at temperature 1"} <= {event["check"] for event in failed}


class _Kept:
    """Events in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def emit(self, role: str, kind: str, **fields: object) -> None:
        self.rows.append({"role": role, "kind": kind} | fields)


@pytest.mark.parametrize("failed", [[], ["math verifier: canary 'empty' must be wrong, got value ()"]])
def test_a_grader_that_misjudges_its_canaries_stops_the_run(failed: list[str]) -> None:
    grader = RowGrader(
        name="math verifier",
        problem=lambda _: None,
        grade=lambda *_: Outcome(kind=OutcomeKind.WRONG, reward=0.0),
        failed_canaries=lambda: failed,
    )
    task, events = Mock(spec=Rows, grader=grader), _Kept()
    with pytest.raises(RunFailed, match="canary 'empty'") if failed else nullcontext():
        check_grader(task, events)
    assert events.rows == [{"role": "grader", "kind": "canaries", "grader": "math verifier", "failed": failed}]


def test_the_verifiers_of_rows_know_their_canaries() -> None:
    assert row_grader("math").failed_canaries() == []
    assert row_grader("exact").failed_canaries() == []
