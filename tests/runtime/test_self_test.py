"""Every run tests its sampler before the first ticket; a sampler that fails stops the run with the cause."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import SampleRequest
from slipstream.engine.engine import Engine
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
