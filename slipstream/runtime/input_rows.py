"""JSONL that a person hands in: each line is judged before anything runs, all faults are told at once. For `generate` and `score`."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from slipstream.core.errors import UsageError

MOST_TOLD = 20  # problems; more are counted
Read = TypeVar("Read")


def read_rows(path: Path, read: Callable[[dict[str, Any]], Read]) -> list[Read]:
    """What `read` makes of each row; empty lines are no rows. Raises UsageError naming each line that is no object or is refused."""
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).split(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(read(_row(line)))
        except UsageError as error:
            problems.append(f"  line {number}: {error}")
    if problems:
        raise _refusal(path, problems)
    if not found:
        raise UsageError(f"{path} holds no rows")
    return found


def row_id(row: dict[str, Any]) -> str | int:
    """The id, a text or a number. Raises UsageError where there is none."""
    value = row.get("id")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UsageError(f'"id" is {"missing" if "id" not in row else json.dumps(value)}; a text or a whole number is needed')
    return value


def check_output(path: Path) -> None:
    """Raises UsageError where no file can be written at `path`, before the work for it is done."""
    if path.is_dir():
        raise UsageError(f"--out {path} is a directory; name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: there is no directory {path.absolute().parent}")


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UsageError("is not a JSON object")
    return row


def _refusal(path: Path, problems: list[str]) -> UsageError:
    count = len(problems)
    more = [f"  and {count - MOST_TOLD} more"] if count > MOST_TOLD else []
    return UsageError("\n".join([f"{path}: {count} bad line{'s' if count != 1 else ''}:", *problems[:MOST_TOLD], *more]))
