"""Events carry time, role and kind; spans carry their phase."""

from pathlib import Path

from slipstream.core.clock import ManualClock
from slipstream.telemetry.events import EventLog, Events, NullEvents
from slipstream.telemetry.jsonl import JsonlWriter, read_jsonl


def test_rows(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "events.jsonl")
    clock = ManualClock(1.5)
    events: Events = EventLog(writer, clock)
    events.emit("learner", "publish", version=3)
    clock.advance(1.0)
    events.span("sampler-0", "generate", 1.5, 2.25, tokens=40)
    writer.close()
    assert read_jsonl(tmp_path / "events.jsonl") == [
        {"time": 1.5, "role": "learner", "kind": "publish", "version": 3},
        {"time": 2.5, "role": "sampler-0", "kind": "span", "phase": "generate", "start": 1.5, "end": 2.25, "tokens": 40},
    ]


def test_null_events_take_everything() -> None:
    events: Events = NullEvents()
    events.emit("learner", "publish", version=3)
    events.span("learner", "step", 0.0, 1.0)
