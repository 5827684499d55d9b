"""The ledger's transition function: `apply(state, event) -> state`. Pure; refuses what the state machine does not allow.

The table `ALLOWED` says from which states of a ticket each event may come; everything else here computes the new entry.
"""

from dataclasses import asdict, replace
from functools import singledispatch

from slipstream.core.errors import TransitionError
from slipstream.ledger.events import (
    Batched,
    Claimed,
    Event,
    Forgotten,
    GroupDropped,
    Opened,
    Restarted,
    SampleDropped,
    Submitted,
    Trained,
    TurnedAway,
)
from slipstream.ledger.state import LedgerState, TicketEntry, TicketState, complete, has_signal

ALLOWED: dict[type[Event], frozenset[TicketState]] = {
    Claimed: frozenset({TicketState.OPEN}),  # or the next new ticket
    Submitted: frozenset({TicketState.LEASED}),
    SampleDropped: frozenset({TicketState.LEASED}),
    GroupDropped: frozenset({TicketState.GROUPED}),
    Batched: frozenset({TicketState.GROUPED}),
    Trained: frozenset({TicketState.BATCHED}),
}


@singledispatch
def apply(event: Event, state: LedgerState) -> LedgerState:
    """The state after the event. Raises TransitionError when the event is not allowed in this state."""
    raise TransitionError(f"unknown ledger event {event!r}")


@apply.register
def _(event: Opened, state: LedgerState) -> LedgerState:
    changed = [name for name, value in asdict(event).items() if getattr(state.policy, name) != value]
    if changed:
        raise TransitionError(f"the run began with another {', '.join(changed)}; its rules cannot change")
    return state


@apply.register
def _(event: Claimed, state: LedgerState) -> LedgerState:
    further = state.policy.is_further(event.index)
    if not state.knows(event.index) and (event.index == state.next_index or further):
        entry = TicketEntry(state=TicketState.LEASED, floor=event.floor, worker=event.worker)
        return replace(_with(state, event.index, entry), next_index=state.next_index + (not further), further=state.further + further)
    entry = _entry(event, state, event.index)
    floor = event.floor if entry.oldest is None else min(event.floor, entry.oldest)
    return _with(state, event.index, replace(entry, state=TicketState.LEASED, floor=floor, worker=event.worker))


@apply.register
def _(event: Submitted, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    _check_new(event, state, entry)
    if event.oldest < entry.floor:
        raise TransitionError(f"sample {event.index}/{event.sample} has tokens of version {event.oldest}, below its floor {entry.floor}")
    oldest = event.oldest if entry.oldest is None else min(entry.oldest, event.oldest)
    rewards = entry.rewards if event.reward is None else entry.rewards | {event.reward}
    submitted = {**entry.submitted, event.sample: event.content}
    return _settle(state, event.index, replace(entry, submitted=submitted, oldest=oldest, rewards=rewards))


@apply.register
def _(event: SampleDropped, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    _check_new(event, state, entry)
    state = _count_dropped(state, event.reason, 1)
    return _settle(state, event.index, replace(entry, dropped=entry.dropped | {event.sample}))


@apply.register
def _(event: TurnedAway, state: LedgerState) -> LedgerState:
    if not state.knows(event.index):
        raise TransitionError(f"sample {event.index}/{event.sample} came in for a ticket that nobody has claimed")
    return replace(state, duplicates=state.duplicates + 1)


@apply.register
def _(event: GroupDropped, state: LedgerState) -> LedgerState:
    entry = _entry(event, state, event.index)
    if event.step != state.batched or len(state.left_out(event.step)) == state.policy.refill:
        raise TransitionError(f"ticket {event.index} cannot be left out of batch {event.step}: none of its refills are left")
    if has_signal(entry):
        raise TransitionError(f"ticket {event.index} cannot be left out: its rewards differ")
    state = _count_dropped(state, event.reason, len(entry.submitted))
    entry = replace(entry, state=TicketState.DROPPED, step=event.step)
    return replace(_with(state, event.index, entry), dropped=state.dropped + 1)


@apply.register
def _(event: Batched, state: LedgerState) -> LedgerState:
    if event.step != state.batched:
        raise TransitionError(f"batch {event.step} cannot be fixed: the next one is {state.batched}")
    if len(set(event.members)) != len(event.members) or len(event.members) != state.policy.prompts_per_step:
        raise TransitionError(
            f"batch {event.step} cannot hold tickets {event.members}: it takes {state.policy.prompts_per_step} different ones"
        )
    changed: dict[int, TicketEntry] = {}
    for index in event.members:
        entry = _entry(event, state, index)
        if entry.oldest is not None and event.step - entry.oldest > state.policy.eta:
            raise TransitionError(f"ticket {index} would be trained at age {event.step - entry.oldest}, above {state.policy.eta}")
        changed[index] = replace(entry, state=TicketState.BATCHED, step=event.step)
    return replace(state, entries={**state.entries, **changed}, batched=event.step + 1)


@apply.register
def _(event: Trained, state: LedgerState) -> LedgerState:
    if event.step != state.version or event.step >= state.batched:
        raise TransitionError(f"batch {event.step} cannot be trained: version {state.version}, {state.batched} batches fixed")
    changed = {index: replace(_entry(event, state, index), state=TicketState.TRAINED) for index in state.members(event.step)}
    return replace(state, entries={**state.entries, **changed}, version=event.step + 1)


@apply.register
def _(event: Forgotten, state: LedgerState) -> LedgerState:
    if event.step > state.version:
        raise TransitionError(f"batches before {event.step} cannot be forgotten: only {state.version} are trained")
    kept = {index: entry for index, entry in state.entries.items() if entry.step is None or entry.step >= event.step}
    trained = sum(entry.state is TicketState.TRAINED and index not in kept for index, entry in state.entries.items())
    return replace(state, entries=kept, forgotten=state.forgotten + trained)


@apply.register
def _(event: Restarted, state: LedgerState) -> LedgerState:
    if event.version > state.version:
        raise TransitionError(f"cannot restart at version {event.version}: only {state.version} batches are known to be trained")

    def back(entry: TicketEntry) -> TicketEntry:
        if entry.state is TicketState.LEASED:
            return replace(entry, state=TicketState.OPEN)
        if entry.state is TicketState.TRAINED and entry.step is not None and entry.step >= event.version:
            return replace(entry, state=TicketState.BATCHED)
        return entry

    return replace(
        state,
        entries={index: back(entry) for index, entry in state.entries.items()},
        version=event.version,
        term=state.term + 1,
        lineage=state.lineage + (event.version < state.version),
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


def _count_dropped(state: LedgerState, reason: str, samples: int) -> LedgerState:
    counts = state.samples_dropped
    return replace(state, samples_dropped={**counts, reason: counts.get(reason, 0) + samples})


def _with(state: LedgerState, index: int, entry: TicketEntry) -> LedgerState:
    return replace(state, entries={**state.entries, index: entry})


def _settle(state: LedgerState, index: int, entry: TicketEntry) -> LedgerState:
    done = complete(entry, state.policy.group_size)
    return _with(state, index, replace(entry, state=TicketState.GROUPED) if done else entry)
