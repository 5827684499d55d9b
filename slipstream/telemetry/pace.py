"""How fast steps go and how long the rest will take, from the last few of them."""

from collections import deque

from slipstream.core.clock import Clock


class Pace:
    """Fed with the number of each finished step; the first one it sees may be any (a resumed run)."""

    def __init__(self, clock: Clock, window: int = 20) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque(maxlen=window)

    def mark(self, step: int) -> None:
        """Step `step` is done now (or: work begins after step `step`)."""
        self._seen.append((self._clock.now_s(), step))

    def left_s(self, total_steps: int) -> float | None:
        """Seconds to go until `total_steps`, None while there is nothing to judge by."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last <= first:
            return None
        return max(0, total_steps - last) * (last_s - first_s) / (last - first)
