"""The end of a journal's write-ahead log as a power cut leaves it: what was not forced to the disk is gone, or is anything.

Reads SQLite's files by their published format (sqlite.org/fileformat2.html, section 4; sqlite.org/walformat.html). Called by
`chaos.director`, which has killed the journal's process before.
"""

import random
import shutil
import sqlite3
import struct
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slipstream.ledger.events import DURABLE

_LOG_HEADER, _FRAME_HEADER = 32, 24
_LAST_FRAME_AT, _COPIED_AT = 16, 96  # in the index: the last frame that counts, and how many are in the database file already


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Frames of the write-ahead log. Those up to `copied` are on the disk for certain; of later ones it depends on what is in them."""

    copied: int
    last: int
    frame_bytes: int

    @property
    def pending(self) -> int:
        return max(0, self.last - self.copied)

    def end_of(self, frame: int) -> int:
        """Where a frame ends in the file, counted from 1."""
        return _LOG_HEADER + frame * self.frame_bytes


def log_of(journal: Path) -> Log:
    """As it is now; empty where there is none. A cheap look, also while the journal is in use."""
    try:
        head = _start(_beside(journal, "-wal"), _LOG_HEADER)
        shared = _start(_beside(journal, "-shm"), _COPIED_AT + 4)
    except FileNotFoundError:
        head = shared = b""
    if len(head) < _LOG_HEADER or len(shared) < _COPIED_AT + 4:
        return Log(copied=0, last=0, frame_bytes=0)
    (page_bytes,) = struct.unpack_from(">I", head, 8)
    (last,) = struct.unpack_from("=I", shared, _LAST_FRAME_AT)
    (copied,) = struct.unpack_from("=I", shared, _COPIED_AT)
    return Log(copied=copied, last=last, frame_bytes=_FRAME_HEADER + page_bytes)


def tear(journal: Path, rng: random.Random) -> str:
    """Lose a part of what the ledger did not wait for, drawn by `rng`: cut off at a byte, or overwritten from there. In words.

    What it did wait for is the newest event of `events.DURABLE` and all before it.
    """
    log = log_of(journal)
    start, end = log.end_of(_forced(journal, log)), log.end_of(log.last)
    if start >= end:
        return "nothing was lost: all of it was on the disk"
    at = rng.randrange(start, end)
    with _beside(journal, "-wal").open("r+b") as file:
        if rng.random() < 0.5:
            file.truncate(at)
            done = "cut off"
        else:
            file.seek(at)
            file.write(rng.randbytes(end - at))
            done = "overwritten"
    return f"{end - at:,} of {end - start:,} bytes that were not on the disk are {done}"


def _forced(journal: Path, log: Log) -> int:
    """The frame up to which all was waited for: the first after which the newest durable event is there."""
    kinds = [kind.__name__ for kind in DURABLE]
    wanted = _newest(journal, log, log.last, kinds)
    low, high = log.copied, log.last
    while low < high:
        middle = (low + high) // 2
        if _newest(journal, log, middle, kinds) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _newest(journal: Path, log: Log, frames: int, kinds: list[str]) -> int:
    """Number of the newest event of these kinds in a journal whose log ends after so many frames; 0 where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(journal, folder))
        _beside(copy, "-wal").write_bytes(_start(_beside(journal, "-wal"), log.end_of(frames)))
        marks = ", ".join("?" * len(kinds))
        with closing(sqlite3.connect(copy)) as database:
            try:
                found = database.execute(f"select coalesce(max(seq), 0) from event where kind in ({marks})", kinds)
                return found.fetchone()[0]
            except sqlite3.OperationalError:  # the tables themselves are in later frames
                return -1


def _beside(journal: Path, end: str) -> Path:
    return journal.with_name(journal.name + end)


def _start(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
