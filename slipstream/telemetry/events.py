"""Everything that happened, with time and role: the rows of events.jsonl. Spans are the phases that roles went through."""

from typing import Any, Protocol

from slipstream.core.clock import Clock
from slipstream.telemetry.jsonl import JsonlWriter


class Events(Protocol):
    """Where actors say what happened. Safe from any thread."""

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        """One thing that happened now: `role` did `kind`, with what else there is to say."""
        ...

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        """`role` was in `phase` from `start_s` to `end_s` (run clock)."""
        ...


class EventLog:
    """Events as rows {"time", "role", "kind", ...}; a span's kind is "span" and it has "phase", "start" and "end"."""

    def __init__(self, writer: JsonlWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self._writer.write({"time": round(self._clock.now_s(), 6), "role": role, "kind": kind, **fields})

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        self.emit(role, "span", phase=phase, start=round(start_s, 6), end=round(end_s, 6), **fields)


class NullEvents:
    """Events that nobody keeps."""

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        pass

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        pass
