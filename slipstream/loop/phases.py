"""The phase a role is in, always named: spans for the report, seconds by phase for the metrics."""

from slipstream.core.clock import Clock
from slipstream.telemetry.events import Events

SHORTEST_SPAN_S = 0.001  # shorter phases count in the seconds but make no row


class Phases:
    """One role's phases. Entered by its own thread; `seconds` and `current` may be read by others."""

    def __init__(self, role: str, clock: Clock, events: Events) -> None:
        self._role, self._clock, self._events = role, clock, events
        self._seconds: dict[str, float] = {}
        self._since = clock.now_s()
        self.current = ""

    def enter(self, phase: str) -> None:
        """From now on the role is in `phase`; entering the present one again changes nothing."""
        if phase == self.current:
            return
        now = self._clock.now_s()
        if self.current:
            self._seconds[self.current] = self._seconds.get(self.current, 0.0) + now - self._since
            if now - self._since >= SHORTEST_SPAN_S:
                self._events.span(self._role, self.current, self._since, now)
        self.current, self._since = phase, now

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each phase so far, the present one included."""
        found = dict(self._seconds)
        if self.current:
            found[self.current] = found.get(self.current, 0.0) + self._clock.now_s() - self._since
        return found

    def waited_s(self) -> float:
        """Seconds in the present phase."""
        return self._clock.now_s() - self._since
