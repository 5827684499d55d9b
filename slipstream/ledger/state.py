"""What the ledger knows: tickets, their samples' states, and counters that always balance. Immutable.

A sample goes OPEN -> LEASED -> SUBMITTED -> GROUPED -> BATCHED -> TRAINED, or ends DROPPED with a reason. A ticket holds one
group, so OPEN, LEASED, BATCHED and TRAINED are states of the whole ticket; SUBMITTED is per sample; a ticket whose samples
are all in is GROUPED. Tickets not yet claimed for the first time are not stored: the next one is `next_index`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SampleIndex = int
TicketIndex = int


class TicketState(StrEnum):
    """Where a ticket stands. TRAINED is terminal (until a restart from an older checkpoint puts it back to BATCHED)."""

    OPEN = "open"  # was claimed once and came back; claimable again
    LEASED = "leased"  # a sampler works on it
    GROUPED = "grouped"  # all its samples are in (or dropped)
    BATCHED = "batched"  # fixed member of a batch
    TRAINED = "trained"  # its batch has run


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a run, constant over its life."""

    prompts_per_step: int  # tickets a batch
    group_size: int  # samples a ticket
    eta: int  # largest age in versions
    pinned: bool  # batch t holds tickets [t P, (t + 1) P), sampled wholly by version max(0, t - eta): sync and lagged
    steps: int  # batches of the whole run


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEntry:
    """One ticket that has been claimed at least once."""

    state: TicketState
    floor: int  # oldest version that may have sampled it
    worker: str  # last holder of the lease
    submitted: Mapping[SampleIndex, str] = field(default_factory=dict[SampleIndex, str])  # content hash of each sample that is in
    oldest: int | None = None  # oldest version among tokens that are in
    dropped: frozenset[SampleIndex] = frozenset()  # samples that ended without a verdict
    step: int | None = None  # the batch it is in


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """Everything. `entries` forgets tickets trained before the checkpoint kept last; counters do not forget."""

    policy: Policy
    entries: Mapping[TicketIndex, TicketEntry] = field(default_factory=dict[TicketIndex, TicketEntry])
    next_index: int = 0  # tickets ever claimed
    batched: int = 0  # batches fixed so far
    version: int = 0  # batches trained = the learner's version
    forgotten: int = 0  # tickets trained and no longer in `entries`
    samples_dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    duplicates: int = 0  # submissions turned away
    term: int = 1  # starts of the coordinator
    lineage: int = 0  # restarts from a checkpoint older than the last version

    @property
    def claimed(self) -> int:
        """Tickets that hold a place in some batch: ever claimed, but for those that came back with nothing in."""
        return self.next_index - sum(not holds_place(entry) for entry in self.entries.values())

    def open_indices(self) -> list[TicketIndex]:
        """Returned tickets, oldest first."""
        return sorted(index for index, entry in self.entries.items() if entry.state is TicketState.OPEN)

    def members(self, step: int) -> list[TicketIndex]:
        """Tickets of a fixed batch, in order."""
        return sorted(index for index, entry in self.entries.items() if entry.step == step)

    def balance(self) -> dict[str, int]:
        """Tickets by state; the values sum to `next_index`, always."""
        counts = {state.value: 0 for state in TicketState}
        for entry in self.entries.values():
            counts[entry.state.value] += 1
        counts[TicketState.TRAINED.value] += self.forgotten
        return counts


def holds_place(entry: TicketEntry) -> bool:
    """A returned ticket holds its place only when some of its samples are in: their tokens keep their age."""
    return entry.state is not TicketState.OPEN or entry.oldest is not None


def complete(entry: TicketEntry, group_size: int) -> bool:
    """All samples are in or dropped."""
    return len(entry.submitted) + len(entry.dropped) == group_size
