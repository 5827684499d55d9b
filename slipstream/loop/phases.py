"""The phase a role is in, always named: spans for the report, seconds by phase for the metrics."""

import threading

from slipstream.core.clock import Clock
from slipstream.telemetry.events import Events

SHORTEST_SPAN_S = 0.001  # shorter phases count in the seconds but make no row


class Phases:
    """One role's phases. Entered by its own thread; everything else may be called by any."""

    def __init__(self, role: str, clock: Clock, events: Events) -> None:
        self.role = role
        self._clock, self._events = clock, events
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._since = self._heard = clock.now_s()
        self._current = ""

    @property
    def current(self) -> str:
        """The present phase; empty before the first."""
        return self._current

    def enter(self, phase: str) -> None:
        """From now on the role is in `phase`; entering the present one again only says that the role gets on."""
        self._heard = self._clock.now_s()
        if phase == self._current:
            return
        with self._lock:
            now = self._clock.now_s()
            ended, since = self._current, self._since
            self._seconds = self._totals(now)
            self._current, self._since = phase, now
        if ended and now - since >= SHORTEST_SPAN_S:
            self._events.span(self.role, ended, since, now)

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each phase so far, the present one included."""
        with self._lock:
            return self._totals(self._clock.now_s())

    def _totals(self, now_s: float) -> dict[str, float]:
        if not self._current:
            return self._seconds
        return {**self._seconds, self._current: self._seconds.get(self._current, 0.0) + now_s - self._since}

    def silent_s(self) -> float:
        """Seconds since the role last entered a phase, be it the present one again."""
        return self._clock.now_s() - self._heard

    def waited_s(self) -> float:
        """Seconds in the present phase."""
        return self._clock.now_s() - self._since
