"""Rows of questions and answers from a JSONL file, packed or not. A broken line is data: skipped, with its number and reason.

The caller says what it skipped; nothing is lost in silence, and one bad line does not end a run.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question. Worked example: id "gsm8k-train-0", question "Natalia sold ...", answer "72", line 1."""

    id: str  # unique in its file
    question: str
    answer: str  # as written in the file; numbers keep their digits
    line: int  # 1-based


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line that is no row."""

    line: int  # 1-based
    reason: str  # e.g. "not JSON: Expecting value at column 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The rows of one file in its order, and what was skipped."""

    path: Path
    rows: tuple[Row, ...]
    skipped: tuple[SkippedLine, ...]

    def notes(self, limit: int = 20) -> tuple[str, ...]:
        """One sentence a skipped line; past `limit` a last one tells how many more there are."""
        told = [f"{self.path.name} line {skip.line}: {skip.reason}; skipped" for skip in self.skipped[:limit]]
        more = len(self.skipped) - len(told)
        return (*told, f"{self.path.name}: {more} more lines skipped") if more else tuple(told)


def read_dataset(path: Path, *, question_field: str, answer_field: str, id_field: str) -> Dataset:
    """Read a .jsonl or .jsonl.gz file. Numbers are taken as written; blank lines are no lines.

    Raises UsageError when the file is absent, damaged as a whole, or has no usable row.
    """
    rows: list[Row] = []
    skipped: list[SkippedLine] = []
    ids: set[str] = set()
    for line, content in _lines(path):
        found = _row(content, line, (question_field, answer_field, id_field), f"{path.name}:{line}")
        if isinstance(found, SkippedLine):
            skipped.append(found)
            continue
        unique = found if found.id not in ids else Row(id=f"{found.id}:{line}", question=found.question, answer=found.answer, line=line)
        ids.add(unique.id)
        rows.append(unique)
    if not rows:
        first = f"; the first: line {skipped[0].line}: {skipped[0].reason}" if skipped else ""
        raise UsageError(f"{path} has no usable row: {len(skipped)} lines, all broken{first}" if skipped else f"{path} is empty")
    return Dataset(path=path, rows=tuple(rows), skipped=tuple(skipped))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
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


def _row(content: bytes, line: int, fields: tuple[str, str, str], name: str) -> Row | SkippedLine:
    """The row of one line; `name` is its id where it has none."""

    def skip(reason: str) -> SkippedLine:
        return SkippedLine(line=line, reason=reason)

    try:
        tree = json.loads(content, parse_int=str, parse_float=str, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return skip(f"not JSON: {error.msg} at column {error.colno}")
    except UnicodeDecodeError as error:
        return skip(f"not UTF-8: {error.reason} at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return skip(f"not JSON: {error}")
    if not isinstance(tree, dict):
        return skip("not an object")
    for field in fields[:2]:
        if problem := _text_problem(tree, field):
            return skip(problem)
    question, answer = (tree[field].strip() for field in fields[:2])
    id = tree.get(fields[2])
    return Row(id=id if isinstance(id, str) and id else name, question=question, answer=answer, line=line)


def _text_problem(tree: dict[str, Any], field: str) -> str | None:
    if field not in tree:
        return f"no field {field!r}"
    if not isinstance(tree[field], str):
        return f"field {field!r} is not text or a number"
    return None if tree[field].strip() else f"empty {field}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
