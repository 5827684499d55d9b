"""A polite stop: the first Ctrl-C (or SIGTERM) ends the run after the present step, the second one at once."""

import signal
from types import FrameType
from typing import Any


class StopFlag:
    """Set by signals while `installed`; may also be set by hand."""

    def __init__(self) -> None:
        self.cause = ""

    def is_set(self) -> bool:
        return bool(self.cause)

    def set(self, cause: str) -> None:
        self.cause = cause


class installed:
    """Within this context SIGINT and SIGTERM set the flag; a second signal acts as if nothing were installed."""

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self._stop

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        self._stop.set(signal.Signals(number).name)
