"""Names of things. Ids are plain strings; all of them but the run id follow from counters, so that runs repeat."""

import uuid


def random_run_id() -> str:
    """The id of a new run: 12 hex digits. The only random id."""
    return uuid.uuid4().hex[:12]


def ticket_id(index: int) -> str:
    """The id of the `index`-th ticket of a run."""
    return f"t{index:08d}"


def ticket_index(name: str) -> int:
    """The index of the ticket of that id."""
    return int(name.removeprefix("t"))


def group_id(index: int) -> str:
    """The id of the group that ticket `index` samples (one group a ticket in the embedded runtime)."""
    return f"g{index:08d}"


def checkpoint_name(step: int) -> str:
    """Directory name of the checkpoint taken after `step` optimizer steps."""
    return f"{step:06d}"
