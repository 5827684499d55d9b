"""The lock that keeps a run directory to one process. The system frees it when the process dies, however it dies."""

import fcntl
import os
from pathlib import Path
from typing import IO

from slipstream.core.errors import UsageError
from slipstream.telemetry.atomic import disk_space_named

_held: set["RunLock"] = set()  # a lock is held until released or the process ends, even when nobody refers to it any more


class RunLock:
    """An exclusive lock on one file, with the holder's process id in it for people."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock or raise `UsageError` naming the process that has it."""
        if self._file is not None:
            raise UsageError(f"{self.path.parent} is in use by process {os.getpid()}: this one")
        with disk_space_named(self.path):
            file = self.path.open("a+", encoding="utf-8")
        if holder := _taken(file, fcntl.LOCK_EX):
            file.close()
            raise UsageError(f"{self.path.parent} is in use by process {holder}; wait for it or stop it first")
        self._file = file
        _held.add(self)
        with disk_space_named(self.path):
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()

    def holder(self) -> str | None:
        """The process that has the lock; None where nobody has."""
        if self._file is not None:
            return str(os.getpid())
        try:
            with self.path.open(encoding="utf-8") as file:
                return _taken(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return None

    def release(self) -> None:
        """Give the lock back; without it, nothing. The file stays: deleting it would let two processes lock two files of one name."""
        if self._file is not None:
            self._file.close()
            self._file = None
            _held.discard(self)


def _taken(file: IO[str], kind: int) -> str | None:
    """Lock the open file, or tell who has it."""
    try:
        fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read().strip() or "unknown"
    return None
