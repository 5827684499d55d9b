"""What can happen to a ledger. Events are data: the journal stores them, `transition.apply` plays them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first event of a journal: the rules of the run (fields of `state.Policy`), which may not change afterwards."""

    prompts_per_step: int
    group_size: int
    eta: int
    pinned: bool
    steps: int
    refill: int = 0
    staleness: str = "wait"
    caps: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The coordinator started once more on this journal: the next term begins. Leases go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker came, or came back under a new epoch."""

    worker: str
    kind: str
    incarnation: str
    epoch: int
    capabilities: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker went; the tickets that it had have come back before."""

    worker: str
    epoch: int
    reason: str  # left | expired


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Tickets leased to a worker are open again."""

    worker: str
    tickets: tuple[int, ...]
    reason: str  # left | expired | restarted (the worker) | lost (it never heard of them)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A sampler took a ticket: a new one, or one that had come back."""

    index: int
    worker: str
    floor: int  # version loaded at the claim, or the oldest of partial tokens that came with the ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A judged sample came in."""

    index: int
    sample: int
    content: str  # hash of its bytes
    oldest: int  # oldest version among its tokens
    reward: float | None = None  # its verdict's; None in journals of runs that could not ask for more prompts
    tokens: int = 0  # of its completion


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDropped:
    """A sample ended without a verdict."""

    index: int
    sample: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """A sample came in that was not taken. Only counted."""

    index: int
    sample: int
    receipt: str = "duplicate"  # why: a `core.records.Receipt`


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """A group was left out of a batch; a further prompt has its place."""

    index: int
    step: int
    reason: str  # zero_variance | stale


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """A group had grown too old: its samples are gone, and its ticket is open again."""

    index: int


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


Event = (
    Opened
    | Started
    | Joined
    | Left
    | Returned
    | Claimed
    | Submitted
    | SampleDropped
    | TurnedAway
    | GroupDropped
    | Requeued
    | Batched
    | Trained
    | Forgotten
    | Restarted
)
# A power cut of the coordinator's machine undoes none of these, nor what came before.
DURABLE = (Opened, Started, Batched, Trained, Restarted)
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
FIELDS: dict[type[Event], tuple[str, ...]] = {kind: tuple(kind.__dataclass_fields__) for kind in get_args(Event)}
_TUPLES = ("members", "tickets")
_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(event: Event) -> tuple[str, str]:
    """Kind and JSON body."""
    return type(event).__name__, _to_json({name: getattr(event, name) for name in FIELDS[type(event)]})


def decode(kind: str, body: str) -> Event:
    """The event that `encode` gave. Raises KeyError for an unknown kind, TypeError or ValueError for a broken body."""
    fields: dict[str, Any] = json.loads(body)
    for name in _TUPLES:
        if name in fields:
            fields[name] = tuple(fields[name])
    return KINDS[kind](**fields)
