"""Files of one JSON object a line: the writer, the reader, and the rule for lines that a crash tore.

A line counts when it is a whole JSON object; only the last line of a file may be torn, since rows are appended in one write.
"""

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.telemetry.atomic import atomic_write_bytes, disk_space_named

Row = dict[str, Any]


class JsonlWriter:
    """Appends rows to one file. Safe from many threads; a row is on its way to the disk when `write` returns.

    Opening cuts a torn last line, so that the next row starts on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        drop_torn_line(path)
        self._lock = threading.Lock()
        with disk_space_named(path):
            self._file = path.open("ab", buffering=0)

    def write(self, row: Row) -> None:
        """Append one row. A full disk is a `RunFailed`; the part of the row that fitted is cut off again."""
        line = encode_row(row)
        with self._lock, disk_space_named(self.path):
            start = os.fstat(self._file.fileno()).st_size
            try:
                _write_all(self._file, line)
            except OSError:
                self._file.truncate(start)
                raise

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        with self._lock:
            self._file.close()


def encode_row(row: Row) -> bytes:
    """One line: compact JSON with its newline, numpy values as plain ones, non-finite floats as null."""
    return json.dumps(_plain(row), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def read_jsonl(path: Path) -> list[Row]:
    """All rows of `path`, [] when there is no such file. A torn last line is left out; a broken line elsewhere is a `RunFailed`."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_bytes().split(b"\n")
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    for number, line in enumerate(lines[: last + 1]):
        row = _parse(line)
        if row is None and number < last:
            raise RunFailed(f"{path} line {number + 1} is not a JSON object; only the last line of a run's file may be broken")
        if row is not None:
            rows.append(row)
    return rows


def drop_torn_line(path: Path) -> None:
    """Cut a last line that is not a whole JSON object, and end the file with a newline. No file is no work."""
    if not path.is_file():
        return
    data = path.read_bytes()
    whole, _, tail = data.rstrip(b"\n").rpartition(b"\n")
    kept = data.rstrip(b"\n") if _parse(tail) is not None else whole
    kept += b"\n" if kept else b""
    if kept != data:
        atomic_write_bytes(path, kept)


def rewrite_jsonl(path: Path, rows: list[Row]) -> None:
    """Replace the file by `rows`, atomically."""
    atomic_write_bytes(path, b"".join(encode_row(row) for row in rows))


def _parse(line: bytes) -> Row | None:
    """The row, or None when the line is not a whole JSON object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _plain(value: Any) -> Any:
    """`value` as JSON knows it. JSON has no NaN or infinity and browsers refuse Python's spelling of them, so they become null:
    a figure that could not be computed is absent, which every reader has to handle anyway."""
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case float():
            return float(value) if math.isfinite(value) else None
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _write_all(file: Any, data: bytes) -> None:
    """A raw file may take only a part at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
