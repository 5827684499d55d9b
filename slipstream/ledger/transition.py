"""The ledger's transition function: `apply(event, state) -> state`. Pure; refuses what the state machine does not allow.

The table `ALLOWED` says from which states of a ticket each event may come; everything else here computes the new entry.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import singledispatch
from typing import Any

from slipstream.core.errors import TransitionError
from slipstream.core.records import Receipt
from slipstream.ledger.changed import changed
from slipstream.ledger.entries import TicketEntry, TicketState
from slipstream.ledger.events import (
    Batched,
    Claimed,
    Event,
    Forgotten,
    GroupDropped,
    Joined,
    Left,
    Opened,
    Requeued,
    Restarted,
    Returned,
    SampleDropped,
    Started,
    Submitted,
    Trained,
    TurnedAway,
)
from slipstream.ledger.state import STALE, LedgerState, WorkerEntry, has_signal, too_old

ALLOWED: dict[type[Event], frozenset[TicketState]] = {
    Claimed: frozenset({TicketState.OPEN}),  # or a new ticket
    Submitted: frozenset({TicketState.LEASED, TicketState.OPEN}),  # open: by a worker whose lease has ended
    SampleDropped: frozenset({TicketState.LEASED, TicketState.OPEN}),
    Returned: frozenset({TicketState.LEASED}),
    GroupDropped: frozenset({TicketState.GROUPED, TicketState.OPEN}),  # open: grown too old with samples in
    Requeued: frozenset({TicketState.GROUPED, TicketState.OPEN}),
    Batched: frozenset({TicketState.GROUPED}),
    Trained: frozenset({TicketState.BATCHED}),
}
_ACCEPTED = Receipt.ACCEPTED.value


@singledispatch
def apply(event: Event, state: LedgerState) -> LedgerState:
    """The state after the event; a draft is changed itself, and of no use after an error.

    Raises TransitionError when the event is not allowed in this state.
    """
    raise TransitionError(f"unknown ledger event {event!r}")


@apply.register
def _(event: Opened, state: LedgerState) -> LedgerState:
    others = [name for name, value in asdict(event).items() if getattr(state.policy, name) != value]
    if others:
        raise TransitionError(f"the run began with another {', '.join(others)}; its rules cannot change")
    return state


@apply.register
def _(event: Started, state: LedgerState) -> LedgerState:
    return state.after(term=state.term + 1)


@apply.register
def _(event: Joined, state: LedgerState) -> LedgerState:
    before = state.workers.get(event.worker)
    if event.epoch <= (before.epoch if before else 0) or (before and before.incarnation != event.incarnation):
        raise TransitionError(f"worker {event.worker} cannot join with epoch {event.epoch} as {event.incarnation}: it is known as {before}")
    entry = WorkerEntry(kind=event.kind, incarnation=event.incarnation, epoch=event.epoch, here=True, capabilities=dict(event.capabilities))
    kinds = state.kinds if before else _more(state.kinds, event.kind, 1)
    return state.after(workers={**state.workers, event.worker: entry}, kinds=kinds)


@apply.register
def _(event: Left, state: LedgerState) -> LedgerState:
    before = state.workers.get(event.worker)
    if before is None or not before.here or before.epoch != event.epoch:
        raise TransitionError(f"worker {event.worker} cannot leave with epoch {event.epoch}: it is known as {before}")
    return state.after(workers={**state.workers, event.worker: changed(before, here=False)})


@apply.register
def _(event: Returned, state: LedgerState) -> LedgerState:
    after: dict[int, TicketEntry] = {}
    for index in event.tickets:
        entry = _entry(event, state, index)
        if entry.worker != event.worker:
            raise TransitionError(f"ticket {index} cannot come back from {event.worker}: it is leased to {entry.worker}")
        after[index] = changed(entry, state=TicketState.OPEN)
    return state.after(entries=state.entries.updated(after), returned=_more(state.returned, event.reason, len(after)))


@apply.register
def _(event: Claimed, state: LedgerState) -> LedgerState:
    if not state.knows(event.index):
        entry = TicketEntry(state=TicketState.LEASED, floor=event.floor, worker=event.worker)
        return state.after(entries=state.entries.updated({event.index: entry}), **_issue(event, state))
    entry = _entry(event, state, event.index)
    floor = event.floor if entry.oldest is None else min(event.floor, entry.oldest)
    return _with(state, event.index, changed(entry, state=TicketState.LEASED, floor=floor, worker=event.worker))


def _issue(event: Claimed, state: LedgerState) -> dict[str, int | frozenset[int]]:
    """What changes when a ticket is claimed for the first time: in order, but that those of a full environment may be passed over."""
    if state.policy.is_further(event.index):
        return {"further": state.further + 1}
    if event.index in state.passed:
        return {"passed": state.passed - {event.index}}
    if event.index < 0 or (event.index > state.next_index and not state.policy.caps):
        raise TransitionError(f"Claimed came to ticket {event.index}, which is unknown: the next is {state.next_index}")
    return {"next_index": event.index + 1, "passed": state.passed.union(range(state.next_index, event.index))}


@apply.register
def _(event: Submitted, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    _check_new(event, state, entry)
    if event.oldest < entry.floor:
        raise TransitionError(f"sample {event.index}/{event.sample} has tokens of version {event.oldest}, below its floor {entry.floor}")
    return _end_sample(
        state,
        event.index,
        entry,
        submitted={**entry.submitted, event.sample: event.content},
        oldest=event.oldest if entry.oldest is None else min(entry.oldest, event.oldest),
        rewards=entry.rewards if event.reward is None or event.reward in entry.rewards else entry.rewards | {event.reward},
        tokens=entry.tokens + event.tokens,
    )


@apply.register
def _(event: SampleDropped, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    _check_new(event, state, entry)
    after = _end_sample(state, event.index, entry, dropped=entry.dropped | {event.sample})
    return after.after(samples_dropped=_more(state.samples_dropped, event.reason, 1))


@apply.register
def _(event: TurnedAway, state: LedgerState) -> LedgerState:
    if not state.knows(event.index):
        raise TransitionError(f"sample {event.index}/{event.sample} came in for a ticket that nobody has claimed")
    return state.after(receipts=_more(state.receipts, event.receipt, 1))


@apply.register
def _(event: GroupDropped, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    samples = len(entry.submitted)
    if event.reason == STALE:
        _check_old(event, state, entry, "drop")
        samples = state.policy.group_size - len(entry.dropped)  # those never drawn have ended as well
        state = _let_go(state, entry)
    elif event.step != state.batched or len(state.left_out(event.step)) == state.policy.refill:
        raise TransitionError(f"ticket {event.index} cannot be left out of batch {event.step}: none of its refills are left")
    elif has_signal(entry) or entry.state is not TicketState.GROUPED:
        raise TransitionError(f"ticket {event.index} cannot be left out: its rewards differ")
    entry = changed(entry, state=TicketState.DROPPED, step=event.step, reason=event.reason)
    return _with(state, event.index, entry).after(
        dropped=state.dropped + 1,
        samples_dropped=_more(state.samples_dropped, event.reason, samples),
    )


@apply.register
def _(event: Requeued, state: LedgerState) -> LedgerState:
    """Nothing older than what the next batch takes may come in for it again."""
    entry = _entry(event, state, event.index)
    _check_old(event, state, entry, "requeue")
    anew = TicketEntry(state=TicketState.OPEN, floor=max(entry.floor, state.batched - state.policy.eta), worker=entry.worker)
    return _with(_let_go(state, entry), event.index, anew).after(
        requeued=state.requeued + 1,
        redrawn=state.redrawn + len(entry.submitted) + len(entry.dropped),
        samples_dropped=_more(state.samples_dropped, STALE, len(entry.submitted)),
    )


@apply.register
def _(event: Batched, state: LedgerState) -> LedgerState:
    if event.step != state.batched:
        raise TransitionError(f"batch {event.step} cannot be fixed: the next one is {state.batched}")
    if len(set(event.members)) != len(event.members) or len(event.members) != state.policy.prompts_per_step:
        raise TransitionError(
            f"batch {event.step} cannot hold tickets {event.members}: it takes {state.policy.prompts_per_step} different ones"
        )
    after: dict[int, TicketEntry] = {}
    for index in event.members:
        entry = _entry(event, state, index)
        if entry.oldest is not None and event.step - entry.oldest > state.policy.eta:
            raise TransitionError(f"ticket {index} would be trained at age {event.step - entry.oldest}, above {state.policy.eta}")
        after[index] = changed(entry, state=TicketState.BATCHED, step=event.step)
    return state.after(
        entries=state.entries.updated(after),
        batched=event.step + 1,
        batched_samples=state.batched_samples + sum(len(entry.submitted) for entry in after.values()),
        batched_tokens=state.batched_tokens + sum(entry.tokens for entry in after.values()),
    )


@apply.register
def _(event: Trained, state: LedgerState) -> LedgerState:
    if event.step != state.version or event.step >= state.batched:
        raise TransitionError(f"batch {event.step} cannot be trained: version {state.version}, {state.batched} batches fixed")
    after = {index: changed(_entry(event, state, index), state=TicketState.TRAINED) for index in state.members(event.step)}
    return state.after(entries=state.entries.updated(after), version=event.step + 1)


@apply.register
def _(event: Forgotten, state: LedgerState) -> LedgerState:
    if event.step > state.version:
        raise TransitionError(f"batches before {event.step} cannot be forgotten: only {state.version} are trained")
    trained = state.entries.count(TicketState.TRAINED)
    kept = state.entries.without_steps([step for step in state.entries.steps() if step < event.step])
    return state.after(entries=kept, forgotten=state.forgotten + trained - kept.count(TicketState.TRAINED))


@apply.register
def _(event: Restarted, state: LedgerState) -> LedgerState:
    if event.version > state.version:
        raise TransitionError(f"cannot restart at version {event.version}: only {state.version} batches are known to be trained")
    older = event.version < state.version
    workers = {name: changed(worker, here=worker.here and not older) for name, worker in state.workers.items()}
    after: dict[int, TicketEntry] = {}
    for index, entry in state.entries.items():
        holder = workers.get(entry.worker)
        if entry.state is TicketState.LEASED and not (holder and holder.here):
            after[index] = changed(entry, state=TicketState.OPEN)
        elif entry.state is TicketState.TRAINED and entry.step is not None and entry.step >= event.version:
            after[index] = changed(entry, state=TicketState.BATCHED)
    back = sum(entry.state is TicketState.OPEN for entry in after.values())
    return state.after(
        entries=state.entries.updated(after),
        workers=workers,
        returned=_more(state.returned, "restarted", back),
        version=event.version,
        lineage=state.lineage + older,
    )


def _entry(event: Event, state: LedgerState, index: int) -> TicketEntry:
    """The ticket's entry, if the event may come to it in its present state."""
    entry = state.entries.get(index)
    if entry is None or entry.state not in ALLOWED[type(event)]:
        at = "unknown" if entry is None else entry.state.value
        raise TransitionError(f"{type(event).__name__} came to ticket {index}, which is {at}")
    return entry


def _check_new(event: Submitted | SampleDropped, state: LedgerState, entry: TicketEntry) -> None:
    if event.sample in entry.submitted or event.sample in entry.dropped:
        raise TransitionError(f"sample {event.index}/{event.sample} has ended before")
    if not 0 <= event.sample < state.policy.group_size:
        raise TransitionError(f"sample {event.index}/{event.sample} is none of the {state.policy.group_size} of its group")


def _check_old(event: GroupDropped | Requeued, state: LedgerState, entry: TicketEntry, staleness: str) -> None:
    if state.policy.waits or state.policy.staleness != staleness:
        raise TransitionError(f"ticket {event.index} cannot be let go: the run's staleness is not {staleness}")
    if not too_old(state, entry):
        raise TransitionError(f"ticket {event.index} cannot be let go: batch {state.batched} may train on it")


def _more(counts: Mapping[str, int], name: str, by: int) -> Mapping[str, int]:
    return {**counts, name: counts.get(name, 0) + by} if by else counts


def _let_go(state: LedgerState, entry: TicketEntry) -> LedgerState:
    """What is in of a group grown too old, counted: long samples are the ones it happens to."""
    return state.after(stale_samples=state.stale_samples + len(entry.submitted), stale_tokens=state.stale_tokens + entry.tokens)


def _with(state: LedgerState, index: int, entry: TicketEntry) -> LedgerState:
    return state.after(entries=state.entries.updated({index: entry}))


def _end_sample(state: LedgerState, index: int, entry: TicketEntry, **fields: Any) -> LedgerState:
    """Every sample that ends is accepted, and the last one completes its group."""
    done = len(entry.submitted) + len(entry.dropped) + 1 == state.policy.group_size
    after = changed(entry, state=TicketState.GROUPED if done else entry.state, **fields)
    receipts = {**state.receipts, _ACCEPTED: state.receipts.get(_ACCEPTED, 0) + 1}
    return state.after(entries=state.entries.updated({index: after}), receipts=receipts)
