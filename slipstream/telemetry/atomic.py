"""Whole-file writes that are seen complete or not at all, and the one place where a full disk gets its words.

Every writer of the run directory goes through here or through `jsonl`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from slipstream.core.errors import RunFailed

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_space_named(path: Path) -> Iterator[None]:
    """Turns "no space left" (or quota used up) into a `RunFailed` that names the file and the way on. Other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise RunFailed(f"no space left on device while writing {path}; free space and go on with --resume") from error
        raise


def atomic_write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write `data` to `path` so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    `durable`: it waits for the disk; else a power cut may leave anything, which is enough for what is soon written anew.
    Something at `path` that is no regular file (a pipe, a device) is written into, never replaced.
    """
    with disk_space_named(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(data)
        else:
            with atomic_file(path, durable=durable) as file:
                file.write(data)


def atomic_write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """`atomic_write_bytes` for text (UTF-8)."""
    atomic_write_bytes(path, text.encode(), durable=durable)


def remove_temporaries(directory: Path) -> None:
    """Delete what writers that were killed in the middle left in `directory`. Only for whoever holds the run's lock."""
    for path in directory.glob(".*.tmp"):
        path.unlink()


@contextmanager
def atomic_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write `path` into, part by part: it takes its place once the block has ended well; if `durable`, on disk by then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_space_named(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
