"""Decisions over a ledger state: what may be claimed now, and which tickets make the next batch. Pure.

The age bound holds without throwing work away, by two rules together. *Admission*: a claim at version v is allowed only while
claimed tickets <= (v + 1 + eta) P, so the tickets whose floor is f or older fit into batches 0 .. f + eta. *Earliest deadline
first*: a ticket with floor f must be in batch f + eta at the latest; batches take the tightest floors first, and a batch
waits for a ticket that would otherwise become too old.
"""

from dataclasses import dataclass
from itertools import chain, islice

from slipstream.ledger.state import LedgerState, TicketEntry, TicketIndex, TicketState


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
    policy = state.policy
    room = (state.version + 1 + policy.eta) * policy.prompts_per_step - state.claimed
    total = policy.steps * policy.prompts_per_step
    candidates = list(islice(chain(state.open_indices(), range(state.next_index, total)), max(0, min(tickets, room))))
    if not policy.pinned:
        return [Grant(index=index, version=loaded_version) for index in candidates] if loaded_version >= state.version else []
    grants = [Grant(index=index, version=pinned_version(state, index)) for index in candidates]
    return [grant for grant in grants if grant.version == loaded_version]


def wanted_version(state: LedgerState, newest: int) -> int | None:
    """The version a sampler should have loaded for its next claim; None when nothing can be claimed now."""
    policy = state.policy
    candidates = [*state.open_indices()[:1], state.next_index]
    if candidates[0] >= policy.steps * policy.prompts_per_step:
        return None
    if (state.version + 1 + policy.eta) * policy.prompts_per_step <= state.claimed:
        return None
    version = pinned_version(state, candidates[0]) if policy.pinned else newest
    return version if version <= newest else None


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
    policy = state.policy
    live = {index: entry for index, entry in state.entries.items() if _has_deadline(entry)}
    if any(entry.state is not TicketState.GROUPED and deadline(entry, policy.eta) <= step for entry in live.values()):
        return None
    ready = sorted((entry.floor, index) for index, entry in live.items() if entry.state is TicketState.GROUPED)
    chosen = sorted(index for _, index in ready[: policy.prompts_per_step])
    return chosen if len(chosen) == policy.prompts_per_step else None


def _has_deadline(entry: TicketEntry) -> bool:
    """A returned ticket has one only when some of its samples are in: their tokens keep their age."""
    partly = entry.state is TicketState.OPEN and entry.oldest is not None
    return partly or entry.state in (TicketState.LEASED, TicketState.GROUPED)


def deadline(entry: TicketEntry, eta: int) -> int:
    """The last batch a ticket may be in."""
    return entry.floor + eta
