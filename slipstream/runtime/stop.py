"""A polite stop: the first Ctrl-C (or SIGTERM) ends the run after the present step, the second one at once.

Ending at once loses nothing but the steps since the last checkpoint: every file of a run survives the death of its process.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

STOPPED = 130  # exit code of a run that was told to stop


class StopFlag:
    """Set by signals while `installed`; may also be set by hand."""

    def __init__(self) -> None:
        self.cause = ""

    def is_set(self) -> bool:
        return bool(self.cause)

    def set(self, cause: str) -> None:
        self.cause = cause


class installed:
    """Within this context SIGINT and SIGTERM set the flag and say so; a second signal ends the process with code 130."""

    def __init__(self, stop: StopFlag, told: str = "stopping after this step and a checkpoint; once more to stop at once") -> None:
        self._stop, self._told = stop, told
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self._stop

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._stop.is_set():
            print(f"slipstream: stopped at once by {name}; go on with --resume", file=sys.stderr, flush=True)
            os._exit(STOPPED)  # threads inside compiled programs cannot be joined
        self._stop.set(name)
        print(f"slipstream: {name}: {self._told}", file=sys.stderr, flush=True)
