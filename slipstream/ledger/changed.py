"""Changed copies of frozen, slotted records: `dataclasses.replace` in a third of its time, which is most of the ledger's. Pure."""

from functools import cache
from typing import Any, TypeVar

Record = TypeVar("Record")


def changed(record: Record, **fields: Any) -> Record:
    """A copy with these fields; the others are shared. The record's own checks, if it has any, are not run again."""
    made = record.__class__.__new__(record.__class__)
    for name, read, write in _slots(record.__class__):
        write(made, fields[name] if name in fields else read(record))
    return made


@cache
def _slots(kind: type[Any]) -> list[tuple[str, Any, Any]]:
    names: tuple[str, ...] = kind.__slots__
    return [(name, getattr(kind, name).__get__, getattr(kind, name).__set__) for name in names]
