"""A ledger state as text and back, so that a restart need not play the whole journal. Pure; what is not exactly a snapshot is refused."""

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any

from slipstream.ledger.entries import Entries, TicketEntry, TicketState
from slipstream.ledger.state import LedgerState, Policy, WorkerEntry

FORMAT = 1
_OWN = ("policy", "entries", "workers", "passed")  # fields with a form of their own; all others are numbers and counts by name
_PLAIN = tuple(field.name for field in fields(LedgerState) if field.name not in _OWN)


class SnapshotError(ValueError):
    """The text is no snapshot of this format."""


def snapshot_to_text(state: LedgerState) -> str:
    """The whole state; its digest comes first."""
    body = json.dumps(
        {
            "format": FORMAT,
            "policy": asdict(state.policy),
            "entries": [_entry_row(index, entry) for index, entry in state.entries.items()],
            "workers": {name: asdict(worker) for name, worker in state.workers.items()},
            "passed": sorted(state.passed),
            **{name: getattr(state, name) for name in _PLAIN},
        },
        separators=(",", ":"),
    )
    return _digest(body) + body


def snapshot_from_text(text: str) -> LedgerState:
    """The state that `snapshot_to_text` wrote. Raises SnapshotError for anything else."""
    digest, body = text[:32], text[32:]
    if _digest(body) != digest:
        raise SnapshotError("its digest is not that of its text")
    try:
        tree: dict[str, Any] = json.loads(body)
        if tree["format"] != FORMAT:
            raise SnapshotError(f"it has format {tree['format']}, and this program reads format {FORMAT}")
        return LedgerState(
            policy=Policy(**tree["policy"]),
            entries=Entries.of(dict(map(_entry, tree["entries"]))),
            workers={name: WorkerEntry(**worker) for name, worker in tree["workers"].items()},
            passed=frozenset(tree["passed"]),
            **{name: tree[name] for name in _PLAIN},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"it cannot be read ({error!r})") from error


def _entry_row(index: int, entry: TicketEntry) -> list[Any]:
    rewards, dropped = sorted(entry.rewards), sorted(entry.dropped)
    own = [list(entry.submitted.items()), entry.oldest, rewards, dropped, entry.step, entry.tokens, entry.reason]
    return [index, entry.state, entry.floor, entry.worker, *own]


def _entry(row: list[Any]) -> tuple[int, TicketEntry]:
    index, state, floor, worker, submitted, oldest, rewards, dropped, step, tokens, reason = row
    return index, TicketEntry(
        state=TicketState(state),
        floor=floor,
        worker=worker,
        submitted=dict(submitted),
        oldest=oldest,
        rewards=frozenset(rewards),
        dropped=frozenset(dropped),
        step=step,
        tokens=tokens,
        reason=reason,
    )


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
