"""The thread that owns an engine: it alone calls it, wakes when there is work, refuses whole requests, and its end is always known."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, WeightVersion
from slipstream.runtime.serve.engine_loop import EngineLoop, Update
from tests.runtime.scripted import ScriptedSampler, sample_request

PATIENCE_S = 60.0


class Listener:
    """A loop of a scripted sampler, and what it delivered."""

    def __init__(self, sampler: ScriptedSampler) -> None:
        self.sampler, self.clock = sampler, ManualClock()
        self.ended = threading.Event()
        self.delivered: SimpleQueue[Sequence[Update]] = SimpleQueue()
        self.loop = EngineLoop(sampler, self.delivered.put, clock=self.clock, on_end=self.ended.set)

    def until_end(self, keys: int) -> list[Update]:
        """Updates until so many requests have ended or been refused."""
        found: list[Update] = []
        while sum(update.finish is not None or bool(update.refused) for update in found) < keys:
            found += self.delivered.get(timeout=PATIENCE_S)
        return found


@contextmanager
def listening(sampler: ScriptedSampler) -> Iterator[Listener]:
    made = Listener(sampler)
    made.loop.start()
    try:
        yield made
    finally:
        sampler.gate.set()
        assert made.loop.stop(PATIENCE_S)


def test_tokens_come_as_they_are_drawn_from_one_thread() -> None:
    sampler = ScriptedSampler(lambda request: range(10, 15), slots=2)
    with listening(sampler) as there:
        there.loop.submit([sample_request("a", new=3), sample_request("b")])
        updates = there.until_end(2)
    for name, expected in (("a", [10, 11, 12]), ("b", [10, 11, 12, 13, 14])):
        mine = [update for update in updates if update.key[0] == name]
        assert [len(update.token_ids) for update in mine] == [1] * len(expected)
        assert [token for update in mine for token in update.token_ids] == expected
        assert mine[-1].finish is FinishReason.LENGTH
    assert len(sampler.threads) == 1
    assert threading.get_ident() not in sampler.threads


def test_nothing_is_stepped_while_there_is_nothing_to_sample() -> None:
    sampler = ScriptedSampler(lambda request: range(5))
    with listening(sampler) as there:
        there.loop.submit([sample_request("a")])
        there.until_end(1)
        steps = sampler.steps
        assert there.loop.load(WeightVersion(lineage=0, version=4, params=None)).result(PATIENCE_S) == 4
        assert sampler.steps == steps == 5
        assert there.loop.figures.version == 4
        there.loop.submit([sample_request("b")])
        assert there.until_end(1)[-1].versions == [4]


def test_requests_that_belong_together_are_taken_or_refused_together() -> None:
    sampler = ScriptedSampler(lambda request: range(5))
    with listening(sampler) as there:
        there.loop.submit([sample_request("a"), sample_request("a", index=1, top_k=13)])
        refused = there.until_end(2)
        assert [update.key for update in refused] == [("a", 0), ("a", 1)]
        assert all("brings bad luck" in update.refused for update in refused)
        there.loop.submit([sample_request("b")])
        assert {update.key[0] for update in there.until_end(1)} == {"b"}


def test_of_an_aborted_request_nothing_more_is_heard() -> None:
    sampler = ScriptedSampler(lambda request: range(5), slots=1)
    sampler.gate.clear()
    with listening(sampler) as there:
        there.loop.submit([sample_request("a"), sample_request("b")])
        there.loop.abort([("a", 0), ("never", 0)])
        sampler.gate.set()
        heard = there.until_end(1)
        assert [update.key[0] for update in heard if update.finish] == ["b"]
        assert sum(update.key[0] == "a" for update in heard) <= 1  # the step that was under way


def test_weights_that_cannot_be_loaded_leave_those_there_are() -> None:
    with listening(ScriptedSampler(lambda request: range(5))) as there:
        with pytest.raises(ValueError, match="no such weights"):
            there.loop.load(WeightVersion(lineage=0, version=-1, params=None)).result(PATIENCE_S)
        there.loop.submit([sample_request("a")])
        assert there.until_end(1)[-1].versions == [0]
        assert there.loop.fault() == ""


def test_a_failure_ends_the_thread_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sampler = ScriptedSampler(lambda request: range(5))
    sampler.failure = RunFailed("log-probs are not finite")
    with listening(sampler) as there:
        there.loop.submit([sample_request("a")])
        assert there.ended.wait(PATIENCE_S)
        assert there.loop.fault() == "the engine has failed: log-probs are not finite"
        with pytest.raises(RunFailed, match="not finite"):
            there.loop.check()
    assert "Traceback" in capsys.readouterr().err


def test_a_step_without_end_is_a_fault() -> None:
    sampler = ScriptedSampler(lambda request: range(5))
    sampler.gate.clear()
    with listening(sampler) as there:
        there.loop.submit([sample_request("a")])
        deadline = time.monotonic() + PATIENCE_S
        while not there.loop.fault():
            there.clock.advance(100.0)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "has been in one step for" in there.loop.fault()
