"""One line of the doctor's report, and what becomes of a check that breaks. Called by every check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"  # works, with less than there could be
    FAILED = "failed"  # what is promised does not hold here


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One finding, for people and as a row of --json."""

    part: str  # e.g. "machine"
    name: str  # e.g. "memory"
    grade: Grade
    detail: str
    fix: str = ""  # what would make it better; with every warning and failure


Check = Callable[[], Sequence[Line]]


def examined(part: str, name: str, check: Check) -> Sequence[Line]:
    """A check's lines. One that raises is a failed line: what other checks find is still worth knowing."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's finding
        detail = f"{type(error).__name__}: {error}"
        return [Line(part=part, name=name, grade=Grade.FAILED, detail=detail, fix="remove the cause; report it if it is not yours")]
