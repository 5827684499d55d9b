"""What can happen to a ledger. Events are data: the journal stores them, `transition.apply` plays them."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first event of a journal: the rules of the run (fields of `state.Policy`), which may not change afterwards."""

    prompts_per_step: int
    group_size: int
    eta: int
    pinned: bool
    steps: int
    refill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A sampler took a ticket: the next new one, or one that had come back."""

    index: int
    worker: str
    floor: int  # version loaded at the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A judged sample came in."""

    index: int
    sample: int
    content: str  # hash of its bytes
    oldest: int  # oldest version among its tokens
    reward: float | None = None  # its verdict's; None in journals of runs that could not ask for more prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDropped:
    """A sample ended without a verdict."""

    index: int
    sample: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """A sample came in that had ended before, or whose ticket is no longer worked on. Only counted."""

    index: int
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """A complete group was left out of a batch; a further prompt has its place."""

    index: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """A batch was fixed. It will hold these tickets whenever it is asked for."""

    step: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A batch has run; version step + 1 exists."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Tickets of batches before `step` can never be needed again: two newer checkpoints exist."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The run starts again from the checkpoint of `version`: leases end, later batches will be served again."""

    version: int


Event = Opened | Claimed | Submitted | SampleDropped | TurnedAway | GroupDropped | Batched | Trained | Forgotten | Restarted
KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (Opened, Claimed, Submitted, SampleDropped, TurnedAway, GroupDropped, Batched, Trained, Forgotten, Restarted)
}


def encode(event: Event) -> tuple[str, str]:
    """Kind and JSON body."""
    fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
    return type(event).__name__, json.dumps(fields, separators=(",", ":"))


def decode(kind: str, body: str) -> Event:
    """The event that `encode` gave. Raises KeyError for an unknown kind, TypeError or ValueError for a broken body."""
    fields: dict[str, Any] = json.loads(body)
    if "members" in fields:
        fields["members"] = tuple(fields["members"])
    return KINDS[kind](**fields)
