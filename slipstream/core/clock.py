"""Time as an injected thing: the system's for runs, a hand-moved one for tests and the simulator."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the clock's own start; never goes backwards."""

    def now_s(self) -> float: ...


class SystemClock:
    """Monotonic seconds since construction, plus `offset_s` (time already spent by earlier starts of the same run)."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._start = time.monotonic() - offset_s

    def now_s(self) -> float:
        return time.monotonic() - self._start


class ManualClock:
    """A clock that moves only when told; for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._lock = threading.Lock()

    def now_s(self) -> float:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        with self._lock:
            self._now += seconds
