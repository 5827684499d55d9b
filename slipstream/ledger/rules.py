"""Decisions over a ledger state: what may be claimed now, and which tickets make the next batch. Pure.

The age bound holds without throwing work away, by two rules together. *Admission*: a claim at version v is allowed only while
claimed tickets <= (v + 1 + eta) P, so the tickets whose floor is f or older fit into batches 0 .. f + eta. *Earliest deadline
first*: a ticket with floor f must be in batch f + eta at the latest; batches take the tightest floors first, and a batch
waits as long as those left over might not all fit into the batches before their deadlines. A ticket that came back with
samples in keeps its deadline, and therefore its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from slipstream.ledger.state import LedgerState, SampleIndex, TicketEntry, TicketIndex, TicketState, holds_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim that would be allowed."""

    index: TicketIndex
    version: int  # pinned version, or the floor


def pinned_version(state: LedgerState, index: TicketIndex) -> int:
    """The version that samples a ticket in the pinned modes."""
    return max(0, index // state.policy.prompts_per_step - state.policy.eta)


def claimable(state: LedgerState, tickets: int, loaded_version: int) -> list[Grant]:
    """Up to `tickets` grants for a sampler that has `loaded_version` loaded; returned tickets first, then new ones."""
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
    room = (state.version + 1 + policy.eta) * policy.prompts_per_step - state.claimed
    for index in state.open_indices():
        places = 0 if holds_place(state.entries[index]) else 1
        if room >= places:
            room -= places
            yield index
    yield from range(state.next_index, min(state.next_index + max(0, room), policy.steps * policy.prompts_per_step))


def turned_away(state: LedgerState, index: TicketIndex, sample: SampleIndex) -> bool:
    """The sample has ended before, or its ticket is no longer worked on: handed in again it is a duplicate, first write wins."""
    entry = state.entries.get(index)
    if entry is None:
        return index < state.next_index  # trained and forgotten
    return entry.state is not TicketState.LEASED or sample in entry.submitted or sample in entry.dropped


def next_batch(state: LedgerState) -> list[TicketIndex] | None:
    """The members of batch `state.batched` if it can be fixed now, else None."""
    policy, step = state.policy, state.batched
    if step >= policy.steps:
        return None
    if policy.pinned:
        wanted = range(step * policy.prompts_per_step, (step + 1) * policy.prompts_per_step)
        ready = all(index in state.entries and state.entries[index].state is TicketState.GROUPED for index in wanted)
        return list(wanted) if ready else None
    return _earliest_deadlines(state, step)


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
