"""A program compiled in the middle of a run is an event with its name; a run's sampler has none."""

from collections.abc import Callable
from pathlib import Path

from slipstream.core.clock import ManualClock
from slipstream.runtime.compile_watch import CompileWatch
from slipstream.telemetry.events import EventLog
from slipstream.telemetry.jsonl import JsonlWriter
from tests.engine.small import drain, engine, request
from tests.runtime.runs import rows


def test_a_shape_that_was_not_foreseen_is_told_once(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "events.jsonl")
    watch = CompileWatch(EventLog(writer, ManualClock()))
    drain(engine(), [request("a", [1])])
    watch.look()
    watch.look()
    drain(engine(max_tokens=11), [request("b", [1], new=2)])  # a shape of its own
    watch.look()
    watch.look()
    writer.close()
    told = [(row["kind"], row["program"], row["times"]) for row in rows(tmp_path / "events.jsonl")]
    assert told == [("compiled", "decode", 1)]  # a prompt of one token is not prefilled


def test_the_sampler_of_a_run_compiles_nothing_after_its_warm_up(undisturbed: Callable[[str], Path]) -> None:
    events = rows(undisturbed("inflight2") / "events.jsonl")
    (warm_up,) = (event for event in events if event["kind"] == "warm_up")
    names = {line.partition(":")[0] for line in warm_up["programs"]}
    assert {"prefill", "decode"} <= names
    assert not names & {event["program"] for event in events if event["kind"] == "compiled"}
