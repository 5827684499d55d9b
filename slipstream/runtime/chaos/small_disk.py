"""A file system of its own that can be filled and freed. Called by `chaos.running` and by tests."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class NoSmallDisk(Exception):
    """This machine does not let us make one. The message says why."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """Mounted at `path`."""

    path: Path

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Until no more than so many bytes are left."""
        with self._filler.open("ab", buffering=0) as file:
            while (room := self.free_bytes - leave_bytes) > 0:
                try:
                    file.write(bytes(min(room, 1 << 20)))
                except OSError:
                    return

    def release(self) -> None:
        """Give what was filled free again."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.path / "filler"


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Generator[SmallDisk]:
    """A disk in memory at the empty directory `path`. Raises NoSmallDisk where mounting is not allowed."""
    made = _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
    if made:
        raise NoSmallDisk(made)
    try:
        yield SmallDisk(path)
    finally:
        failed = _run("umount", str(path))
        if failed:
            raise OSError(failed)


def _run(*command: str) -> str:
    """Empty, or what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    return (done.stderr.strip() or f"{command[0]} failed") if done.returncode else ""
