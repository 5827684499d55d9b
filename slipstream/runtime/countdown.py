"""Progress of a job of known size on standard error: share done, tokens a second, time left. Called by `generate` and `score`."""

import sys
from collections.abc import Callable

from slipstream.core.clock import Clock

EVERY_S = 0.5  # on a terminal
EVERY_PLAIN_S = 10.0  # into a file


class Countdown:
    """Told of what gets done; writes a line now and then: over itself on a terminal, one after the other elsewhere."""

    def __init__(
        self, total: int, what: str, clock: Clock, write: Callable[[str], object] | None = None, *, terminal: bool | None = None
    ) -> None:
        self._total, self._what, self._clock = total, what, clock
        self._write = write or sys.stderr.write
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._began_s = self._shown_s = clock.now_s()
        self._done = self._tokens = 0

    def add(self, done: int, tokens: int) -> None:
        """So many more items are done, with so many tokens."""
        self._done += done
        self._tokens += tokens
        if self._clock.now_s() - self._shown_s >= (EVERY_S if self._terminal else EVERY_PLAIN_S):
            self._show()

    def finish(self) -> None:
        """The last line."""
        self._show()
        if self._terminal:
            self._write("\n")

    def tokens_per_second(self) -> float:
        return self._tokens / max(1e-9, self._clock.now_s() - self._began_s)

    def _show(self) -> None:
        self._shown_s = self._clock.now_s()
        elapsed = self._shown_s - self._began_s
        left = f", {elapsed / self._done * (self._total - self._done):.0f} s left" if 0 < self._done < self._total else ""
        line = f"{self._done}/{self._total} {self._what}, {self.tokens_per_second():.0f} tokens/s{left}"
        self._write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
