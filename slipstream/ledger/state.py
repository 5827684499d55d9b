"""What the ledger knows: tickets, their samples' states, and counters that always balance. Immutable.

A sample goes OPEN -> LEASED -> SUBMITTED -> GROUPED -> BATCHED -> TRAINED, or ends DROPPED with a reason. A ticket holds one
group, so OPEN, LEASED, BATCHED and TRAINED are states of the whole ticket; SUBMITTED is per sample; a ticket whose samples
are all in is GROUPED. A group without signal can be DROPPED whole, for a further prompt (`Policy.refill`). Tickets not yet claimed
for the first time are not stored: the next one is `next_index`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SampleIndex = int
TicketIndex = int


class TicketState(StrEnum):
    """Where a ticket stands. DROPPED is terminal, and TRAINED too (until a restart from an older checkpoint puts it back to BATCHED)."""

    OPEN = "open"  # was claimed once and came back; claimable again
    LEASED = "leased"  # a sampler works on it
    GROUPED = "grouped"  # all its samples are in (or dropped)
    BATCHED = "batched"  # fixed member of a batch
    TRAINED = "trained"  # its batch has run
    DROPPED = "dropped"  # left out of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a run, constant over its life."""

    prompts_per_step: int  # tickets a batch
    group_size: int  # samples a ticket
    eta: int  # largest age in versions
    pinned: bool  # batch t holds tickets of its own `block`, sampled wholly by version max(0, t - eta): sync and lagged
    steps: int  # batches of the whole run
    refill: int = 0  # prompts that a batch may ask for in place of groups without signal

    @property
    def planned(self) -> int:
        """Tickets of the run without refills."""
        return self.steps * self.prompts_per_step

    def block(self, step: int) -> tuple[range, range]:
        """A pinned batch's own tickets, and those it may ask for in place of groups without signal.

        The latter come after all planned ones, so that each planned prompt is sampled whatever becomes of the others.
        """
        further = self.planned + step * self.refill
        return range(step * self.prompts_per_step, (step + 1) * self.prompts_per_step), range(further, further + self.refill)

    def is_further(self, index: TicketIndex) -> bool:
        """A pinned ticket in place of a group without signal."""
        return self.pinned and self.refill > 0 and index >= self.planned

    def step_of(self, index: TicketIndex) -> int:
        """The batch that a pinned ticket is for."""
        return (index - self.planned) // self.refill if self.is_further(index) else index // self.prompts_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEntry:
    """One ticket that has been claimed at least once."""

    state: TicketState
    floor: int  # oldest version that may have sampled it
    worker: str  # last holder of the lease
    submitted: Mapping[SampleIndex, str] = field(default_factory=dict[SampleIndex, str])  # content hash of each sample that is in
    oldest: int | None = None  # oldest version among tokens that are in
    rewards: frozenset[float] = frozenset()  # the different ones among the samples that are in
    dropped: frozenset[SampleIndex] = frozenset()  # samples that ended without a verdict
    step: int | None = None  # the batch it is in, or was left out of


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """Everything. `entries` forgets tickets trained before the checkpoint kept last; counters do not forget."""

    policy: Policy
    entries: Mapping[TicketIndex, TicketEntry] = field(default_factory=dict[TicketIndex, TicketEntry])
    next_index: int = 0  # the next new ticket, but for further ones of pinned batches
    further: int = 0  # further tickets of pinned batches ever claimed
    batched: int = 0  # batches fixed so far
    version: int = 0  # batches trained = the learner's version
    forgotten: int = 0  # tickets trained and no longer in `entries`
    dropped: int = 0  # tickets ever left out of a batch
    samples_dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    duplicates: int = 0  # submissions turned away
    term: int = 1  # starts of the coordinator
    lineage: int = 0  # restarts from a checkpoint older than the last version

    @property
    def issued(self) -> int:
        """Tickets ever claimed."""
        return self.next_index + self.further

    @property
    def claimed(self) -> int:
        """Tickets that hold a place in some batch: ever claimed, but for those dropped, and those that came back with nothing in."""
        return self.issued - self.dropped - sum(not holds_place(entry) for entry in self.entries.values())

    def knows(self, index: TicketIndex) -> bool:
        """The ticket was claimed once; it may be forgotten since."""
        if self.policy.is_further(index):
            return index in self.entries or self.policy.step_of(index) < self.version
        return index < self.next_index

    def open_indices(self) -> list[TicketIndex]:
        """Returned tickets, oldest first."""
        return sorted(index for index, entry in self.entries.items() if entry.state is TicketState.OPEN)

    def members(self, step: int) -> list[TicketIndex]:
        """Tickets of a fixed batch, in order."""
        return sorted(index for index, entry in self.entries.items() if entry.step == step and entry.state is not TicketState.DROPPED)

    def left_out(self, step: int) -> list[TicketIndex]:
        """Tickets that a batch was refilled for, in order."""
        return sorted(index for index, entry in self.entries.items() if entry.step == step and entry.state is TicketState.DROPPED)

    def balance(self) -> dict[str, int]:
        """Tickets by state; the values sum to `issued`, always."""
        counts = dict.fromkeys(map(str, TicketState), 0)
        for entry in self.entries.values():
            counts[entry.state] += 1
        counts[TicketState.TRAINED] += self.forgotten
        counts[TicketState.DROPPED] = self.dropped
        return counts


def holds_place(entry: TicketEntry) -> bool:
    """A returned ticket holds its place only when some of its samples are in: their tokens keep their age."""
    return entry.state is not TicketState.OPEN or entry.oldest is not None


def complete(entry: TicketEntry, group_size: int) -> bool:
    """All samples are in or dropped."""
    return len(entry.submitted) + len(entry.dropped) == group_size


def has_signal(entry: TicketEntry) -> bool:
    """Two of its judged samples have different rewards; without, every advantage of the group is zero."""
    return len(entry.rewards) > 1
