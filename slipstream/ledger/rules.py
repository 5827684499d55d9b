"""Decisions over a ledger state: what may be claimed now, and which tickets make the next batch. Pure.

The age bound holds without throwing work away, by two rules together. *Admission*: a claim at version v is allowed only while
claimed tickets <= (v + 1 + eta) P, so the tickets whose floor is f or older fit into batches 0 .. f + eta. *Earliest deadline
first*: a ticket with floor f must be in batch f + eta at the latest; batches take the tightest floors first, and a batch
waits as long as those left over might not all fit into the batches before their deadlines. A ticket that came back with
samples in keeps its deadline, and therefore its place.

*Refill*: with `Policy.refill` = R a batch may ask for up to R further prompts in place of complete groups without signal. In flight
such a group is dropped when its last sample comes in, as long as the batch to be fixed next has refills left: it gives up its place, so
that admission allows another claim. Nothing else changes: a dropped group only loosens the deadlines of the others. In the pinned
modes the batch must not depend on the order in which groups come in: the first R groups without signal each add one ticket to those
that the batch asks for, whichever they are, and nothing is dropped before all are in. The batch then is the P first with signal;
where there are fewer, the first without fill it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from slipstream.ledger.state import LedgerState, SampleIndex, TicketEntry, TicketIndex, TicketState, has_signal, holds_place

ZERO_VARIANCE = "zero_variance"  # the reason why groups are dropped

_COMPLETE = (TicketState.GROUPED, TicketState.DROPPED)  # of a batch that is not fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim that would be allowed."""

    index: TicketIndex
    version: int  # pinned version, or the floor


def pinned_version(state: LedgerState, index: TicketIndex) -> int:
    """The version that samples a ticket in the pinned modes."""
    return max(0, state.policy.step_of(index) - state.policy.eta)


def claimable(state: LedgerState, tickets: int, loaded_version: int) -> list[Grant]:
    """Up to `tickets` grants for a sampler that has `loaded_version` loaded; earlier batches and returned tickets first."""
    candidates = list(islice(_admitted(state), max(0, tickets)))
    if not state.policy.pinned:
        return [Grant(index=index, version=loaded_version) for index in candidates] if loaded_version >= state.version else []
    grants = [Grant(index=index, version=pinned_version(state, index)) for index in candidates]
    return [grant for grant in grants if grant.version == loaded_version]


def wanted_version(state: LedgerState, newest: int) -> int | None:
    """The version a sampler should have loaded for its next claim; None when nothing can be claimed now."""
    first = next(_admitted(state), None)
    if first is None:
        return None
    version = pinned_version(state, first) if state.policy.pinned else newest
    return version if version <= newest else None


def _admitted(state: LedgerState) -> Iterator[TicketIndex]:
    """The tickets that may be claimed now, in the order in which they would be."""
    policy = state.policy
    if policy.pinned:
        for step in range(state.batched, min(state.version + policy.eta + 1, policy.steps)):
            for index in asked_for(state, step):
                entry = state.entries.get(index)
                if entry is None or entry.state is TicketState.OPEN:
                    yield index
        return
    room = (state.version + 1 + policy.eta) * policy.prompts_per_step - state.claimed
    for index in state.open_indices():
        places = 0 if holds_place(state.entries[index]) else 1
        if room >= places:
            room -= places
            yield index
    yield from range(state.next_index, min(state.next_index + max(0, room), policy.planned + state.dropped))


def asked_for(state: LedgerState, step: int) -> Sequence[TicketIndex]:
    """The tickets of a pinned batch that is not fixed yet: its own, and one for each of the first groups found without signal."""
    own, further = state.policy.block(step)
    silent = sum(is_silent(state, index) for index in (*own, *further)) if further else 0
    return [*own, *further[:silent]] if silent else own


def is_silent(state: LedgerState, index: TicketIndex) -> bool:
    """All of the ticket's samples are in, and it has no signal."""
    entry = state.entries.get(index)
    return entry is not None and entry.state in _COMPLETE and not has_signal(entry)


def turned_away(state: LedgerState, index: TicketIndex, sample: SampleIndex) -> bool:
    """The sample has ended before, or its ticket is no longer worked on: handed in again it is a duplicate, first write wins."""
    entry = state.entries.get(index)
    if entry is None:
        return state.knows(index)  # forgotten
    return entry.state is not TicketState.LEASED or sample in entry.submitted or sample in entry.dropped


def next_batch(state: LedgerState) -> list[TicketIndex] | None:
    """The members of batch `state.batched` if it can be fixed now, else None."""
    policy, step = state.policy, state.batched
    if step >= policy.steps:
        return None
    if not policy.pinned:
        return _earliest_deadlines(state, step)
    asked = asked_for(state, step)
    entries = [state.entries.get(index) for index in asked]
    if not all(entry is not None and entry.state in _COMPLETE for entry in entries):
        return None
    by_use = sorted(asked, key=lambda index: is_silent(state, index))  # stable: by index within each kind
    return sorted(by_use[: policy.prompts_per_step])


def gives_way(state: LedgerState, index: TicketIndex) -> bool:
    """In flight, of a ticket whose last sample has just come in: it is dropped for a further prompt."""
    return not state.policy.pinned and is_silent(state, index) and len(state.left_out(state.batched)) < state.policy.refill


def surplus(state: LedgerState, members: Sequence[TicketIndex]) -> list[TicketIndex]:
    """The tickets that are dropped as batch `state.batched` is fixed with these members."""
    if not state.policy.pinned:
        return []
    taken = {*members, *state.left_out(state.batched)}
    return [index for index in asked_for(state, state.batched) if index not in taken]


def _earliest_deadlines(state: LedgerState, step: int) -> list[TicketIndex] | None:
    """The complete tickets with the tightest floors, if all the others can still make their own deadlines afterwards."""
    policy = state.policy
    live = sorted((entry.floor, index) for index, entry in state.entries.items() if entry.step is None and holds_place(entry))
    chosen = [index for _, index in live if state.entries[index].state is TicketState.GROUPED][: policy.prompts_per_step]
    if len(chosen) < policy.prompts_per_step:
        return None
    taken = set(chosen)
    others = [state.entries[index] for _, index in live if index not in taken]
    in_time = all(deadline(entry, policy.eta) > step + place // policy.prompts_per_step for place, entry in enumerate(others))
    return sorted(chosen) if in_time else None


def deadline(entry: TicketEntry, eta: int) -> int:
    """The last batch a ticket may be in."""
    return entry.floor + eta
