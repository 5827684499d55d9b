"""Rows of a data file as they stand there: JSONL packed or not, Parquet, or a set of a hub. A broken line is skipped with its reason.

What the fields mean is said by `envs.catalog`. The caller tells what was skipped; nothing is lost in silence.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.envs.tables import HUB, hub_rows, parquet_rows

MOST_TOLD = 10  # bad rows named in one message; more are counted
ID_FIELDS = ("id", "unique_id", "task_id", "ID", "name")
_RUN_SUFFIX = re.compile(r"@[0-9]+\Z")  # what a run adds to the ids of rows; see `envs.rows`

Fields = Mapping[str, Any]


class WrittenNumber(float):
    """A number with a fraction that remembers how it was written: 0.10 is not 0.1 to a person."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row. Worked example: id "gsm8k-train-0", fields {"question": "Natalia sold ...", "answer": "72"}, line 1."""

    id: str  # unique in its file
    fields: Fields  # as written, plain data
    line: int  # 1-based; of a table: the row


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line that is no row, or a row that cannot be used."""

    line: int  # 1-based
    reason: str  # e.g. "not JSON: Expecting value at column 1"
    id: str = ""  # where it is known

    def __str__(self) -> str:
        return f"line {self.line}{f' ({self.id})' if self.id else ''}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The rows of one file in its order, and what was skipped."""

    name: str  # of the file, for messages
    rows: tuple[Row, ...]
    skipped: tuple[SkippedLine, ...]


def read_dataset(source: str | Path, *, id_fields: Sequence[str] = ID_FIELDS) -> Dataset:
    """The rows of a .jsonl, .jsonl.gz or .parquet file, or of `hub:OWNER/NAME[:CONFIG]:SPLIT`. Blank lines are no lines.

    A row is named by the first of `id_fields` that it has, else by its line; a name that was there before gets its line too.
    Raises UsageError when the file is absent, damaged as a whole, or empty.
    """
    name = str(source) if str(source).startswith(HUB) else Path(source).name
    rows: list[Row] = []
    skipped: list[SkippedLine] = []
    ids: set[str] = set()
    for found in _rows(str(source), id_fields, name):
        if isinstance(found, SkippedLine):
            skipped.append(found)
            continue
        taken = found.id in ids or _RUN_SUFFIX.search(found.id)
        unique = replace(found, id=f"{found.id}:{found.line}") if taken else found
        ids.add(unique.id)
        rows.append(unique)
    if not rows and not skipped:
        raise UsageError(f"data file {source} is empty")
    return Dataset(name=name, rows=tuple(rows), skipped=tuple(skipped))


def refusal(name: str, skipped: Sequence[SkippedLine], why: str) -> UsageError:
    """One error for all bad rows of a file: the first ten by line, and how many more."""
    told = [f"  {skip}" for skip in skipped[:MOST_TOLD]]
    more = [f"  and {len(skipped) - MOST_TOLD} more"] if len(skipped) > MOST_TOLD else []
    return UsageError("\n".join([f"{name}: {why}:", *told, *more]))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of the file that are not blank."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                content = content.removeprefix(b"\xef\xbb\xbf") if number == 1 else content
                if content := content.strip():
                    yield number, content
    except FileNotFoundError:
        raise UsageError(f"data file {path} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {path} cannot be read: {error}") from error


def _rows(source: str, id_fields: Sequence[str], name: str) -> Iterator[Row | SkippedLine]:
    if source.startswith(HUB) or source.endswith(".parquet"):
        table = hub_rows(source) if source.startswith(HUB) else parquet_rows(Path(source))
        for line, fields in enumerate(table, start=1):
            yield Row(id=_id(fields, id_fields, f"{name}:{line}"), fields=fields, line=line)
    else:
        for line, content in numbered_lines(Path(source)):
            yield _row(content, line, id_fields, f"{name}:{line}")


def _row(content: bytes, line: int, id_fields: Sequence[str], name: str) -> Row | SkippedLine:
    """The row of one line; `name` is its id where it has none."""
    try:
        tree = json.loads(content, parse_float=_written, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return SkippedLine(line=line, reason=f"not JSON: {error.msg} at column {error.colno}")
    except UnicodeDecodeError as error:
        return SkippedLine(line=line, reason=f"not UTF-8: {error.reason} at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return SkippedLine(line=line, reason=f"not JSON: {error}")
    if not isinstance(tree, dict):
        return SkippedLine(line=line, reason="not an object")
    return Row(id=_id(tree, id_fields, name), fields=tree, line=line)


def _id(fields: Fields, names: Sequence[str], otherwise: str) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    return otherwise


def _written(text: str) -> WrittenNumber:
    number = WrittenNumber(text)
    number.text = text
    return number


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
