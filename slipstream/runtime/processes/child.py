"""One role's process, as its supervisor sees it: started with a log file, looked at, signalled, and how it ended. An actor."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.runtime.processes.parent import PARENT

LAST_LINES = 15
FULL_BYTES = 64 << 10  # less room than that is none
_SAID = "slipstream: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int  # below 0: by that signal
    peak_bytes: int  # high-water mark of its memory
    last_lines: tuple[str, ...]  # of its log
    disk_full: bool = False  # that of its log, which may lack what it said last

    @property
    def end(self) -> str:
        """For people: the exit code or signal."""
        if self.code >= 0:
            return f"exit code {self.code}"
        number = signal.Signals(-self.code)
        killed = ": perhaps by the system, for its memory" if number is signal.SIGKILL else ""
        return f"signal {number.name}{killed}"

    @property
    def cause(self) -> str:
        """For people: the end, and what the process said of it."""
        return f"{self.end}: {self.words}" if self.code >= 0 and self.words else self.end

    @property
    def words(self) -> str:
        """What it gave as its cause, if it did."""
        said = (line.removeprefix(_SAID) for line in reversed(self.last_lines) if line.startswith(_SAID))
        if self.disk_full:
            return next((words for words in said if "no space left" in words), "no space left on device, not even for its log")
        return next(said, "")


class Child:
    """A running process. Its output goes to the end of its log."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        environment = os.environ | {PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the supervisor, which then asks each role
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Exit | None:
        """How it ended; None while it runs. Not to be called again after that."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Exit(
            code=self._process.returncode, peak_bytes=usage.ru_maxrss * 1024, last_lines=self._last_lines(), disk_full=self._disk_full()
        )

    def signal(self, number: signal.Signals) -> None:
        """Not through Popen, which would first look whether it has ended, and leave nothing for `poll` to find."""
        os.kill(self.pid, number)

    def _disk_full(self) -> bool:
        return shutil.disk_usage(self.log.parent).free < FULL_BYTES

    def _last_lines(self) -> tuple[str, ...]:
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return tuple(file.read().decode(errors="replace").splitlines()[-LAST_LINES:])
