"""Changed copies of frozen, slotted records: `dataclasses.replace` in a third of its time, which is most of the ledger's. Pure."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

Record = TypeVar("Record")


def changed(record: Record, **fields: Any) -> Record:
    """A copy with these fields; the others are shared. The record's own checks, if it has any, are not run again."""
    values, writers = _slots(record.__class__)
    made = record.__class__.__new__(record.__class__)
    for write, value in zip(writers.values(), values(record), strict=True):
        write(made, value)
    return overwritten(made, **fields)


def overwritten(record: Record, **fields: Any) -> Record:
    """The very record with these fields: for one that nobody else has seen yet."""
    _, writers = _slots(record.__class__)
    for name, value in fields.items():
        writers[name](record, value)
    return record


@cache
def _slots(kind: type[Any]) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, Any]]:
    """Reads all fields at once; writes each by name."""
    names: tuple[str, ...] = kind.__slots__
    return attrgetter(*names), {name: getattr(kind, name).__set__ for name in names}
