"""Every entry by the name that `task.name` takes."""

from slipstream.core.errors import UsageError, near_names
from slipstream.envs.catalog.entry import Entry
from slipstream.envs.catalog.maths import MATHS
from slipstream.envs.catalog.programs import PROGRAMS

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*MATHS, *PROGRAMS)}


def find_entry(name: str, field: str = "task.name") -> Entry:
    """The entry of that name. Raises UsageError with the near names where there is none; `field` is what the user called it."""
    if name not in ENTRIES:
        raise UsageError(f"{field} = {name!r}: no such task in the catalogue; {near_names(name, ENTRIES)}")
    return ENTRIES[name]
