"""Events of a worker, on their way to the run's events.jsonl. Implements `telemetry.events.Events`; called by `runtime.processes`.

They are sent together now and then. A coordinator that is away loses none until there are too many to keep, and then the number
that is lost is an event too.
"""

import json
import threading
import uuid
from collections import deque
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import StaleEpoch
from slipstream.runtime.join.caller import Ending
from slipstream.runtime.join.membership import Seat
from slipstream.runtime.worker import Worker
from slipstream.telemetry.jsonl import encode_row

EVERY_S = 0.5
AT_ONCE = 2_000  # events of one call
KEPT = 200_000


class RemoteEvents:
    """Thread-safe."""

    def __init__(self, seat: Seat, clock: Clock) -> None:
        self._seat, self._clock = seat, clock
        self._lock = threading.Lock()
        self._rows: deque[dict[str, Any]] = deque()
        self._stream = uuid.uuid4().hex  # of this process
        self._sent = self._lost = 0
        self._ending = threading.Event()
        self._worker = Worker("events", self._run, lambda: None)

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        row = {"time": round(self._clock.now_s(), 6), "role": role, "kind": kind, "fields": json.loads(encode_row(fields))}
        with self._lock:
            if len(self._rows) >= KEPT:
                self._lost += 1
            else:
                self._rows.append(row)

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        self.emit(role, "span", phase=phase, start=round(start_s, 6), end=round(end_s, 6), **fields)

    def start(self) -> None:
        self._worker.start()

    def end(self, patience_s: float) -> None:
        """Send what is left, as far as it goes within the time."""
        self._ending.set()
        self._worker.join(patience_s)

    def check(self) -> None:
        """Raise what the thread died of."""
        self._worker.check()

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(EVERY_S)
            try:
                self._flush()
            except StaleEpoch:
                continue  # sent again when the worker has joined anew
            except Ending:
                return

    def _flush(self) -> None:
        while self._rows:
            with self._lock:
                rows = [self._rows[place] for place in range(min(AT_ONCE, len(self._rows)))]
            self._seat.call("events", {"stream": self._stream, "first": self._sent, "events": rows})
            with self._lock:
                for _ in rows:
                    self._rows.popleft()
                self._sent += len(rows)
                lost, self._lost = self._lost, 0
            if lost:
                self.emit(self._seat.joined.worker, "events_lost", count=lost)
