"""What the ledger knows: tickets, their samples' states, workers, and counters that always balance. Immutable.

A sample goes OPEN -> LEASED -> SUBMITTED -> GROUPED -> BATCHED -> TRAINED, or ends DROPPED with a reason. A ticket holds one
group, so OPEN, LEASED, BATCHED and TRAINED are states of the whole ticket; SUBMITTED is per sample; a ticket whose samples
are all in is GROUPED. A group can be DROPPED whole, for a further prompt: without signal (`Policy.refill`), or grown too old
(`Policy.staleness`). Tickets not yet claimed for the first time are not stored: the next one is `next_index`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.ledger.changed import changed, overwritten
from slipstream.ledger.entries import Entries, TicketEntry, TicketIndex, TicketState

ZERO_VARIANCE = "zero_variance"  # reasons why groups are dropped
STALE = "stale"
_STATES = tuple(TicketState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a run, constant over its life."""

    prompts_per_step: int  # tickets a batch
    group_size: int  # samples a ticket
    eta: int  # largest age in versions
    pinned: bool  # batch t holds tickets of its own `block`, sampled wholly by version max(0, t - eta): sync and lagged
    steps: int  # batches of the whole run
    refill: int = 0  # prompts that a batch may ask for in place of groups without signal
    staleness: str = "wait"  # batches `wait` for slow groups, or let them go: `drop` for another prompt, `requeue` to be drawn anew
    caps: Mapping[str, int] = field(default_factory=dict[str, int])  # by environment: so many of its tickets may be leased at once

    @property
    def planned(self) -> int:
        """Tickets of the run without refills."""
        return self.steps * self.prompts_per_step

    @property
    def waits(self) -> bool:
        """Batches wait for slow groups, so that none grows too old."""
        return self.pinned or self.staleness == "wait"

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
class WorkerEntry:
    """One worker that has joined at least once. Deadlines of leases are not here: they are times, and no part of the journal."""

    kind: str
    incarnation: str  # names its process; the same again is the same worker
    epoch: int  # of its last join
    here: bool  # False: it left, or its lease ended
    capabilities: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """Everything. `entries` forgets tickets trained before the checkpoint kept last; counters do not forget."""

    policy: Policy
    entries: Entries = field(default_factory=Entries)
    workers: Mapping[str, WorkerEntry] = field(default_factory=dict[str, WorkerEntry])
    kinds: Mapping[str, int] = field(default_factory=dict[str, int])  # workers that ever joined, by kind
    next_index: int = 0  # the next new ticket, but for further ones of pinned batches
    passed: frozenset[TicketIndex] = frozenset()  # below it and not claimed yet: their environments were at their caps
    further: int = 0  # further tickets of pinned batches ever claimed
    batched: int = 0  # batches fixed so far
    version: int = 0  # batches trained = the learner's version
    forgotten: int = 0  # tickets trained and no longer in `entries`
    dropped: int = 0  # tickets ever left out of a batch
    samples_dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # by reason
    receipts: Mapping[str, int] = field(default_factory=dict[str, int])  # submissions by `core.records.Receipt`
    returned: Mapping[str, int] = field(default_factory=dict[str, int])  # tickets that came back, by reason
    requeued: int = 0  # groups grown too old that are drawn anew
    redrawn: int = 0  # their samples that had ended
    batched_samples: int = 0  # judged samples in batches
    batched_tokens: int = 0  # their completion tokens
    stale_samples: int = 0  # judged samples let go with groups grown too old, dropped or drawn anew
    stale_tokens: int = 0  # their completion tokens
    term: int = 1  # starts of the coordinator
    lineage: int = 0  # restarts from a checkpoint older than the last version

    def draft(self) -> "LedgerState":
        """A copy that `after` changes in place until it is sealed: for many events in a row. Nobody else may hold it."""
        return changed(self, entries=self.entries.draft())

    def sealed(self) -> "LedgerState":
        """This very state, which does not change any more."""
        self.entries.seal()
        return self

    def after(self, **fields: Any) -> "LedgerState":
        """A copy with these fields; of a draft itself."""
        return overwritten(self, **fields) if self.entries.is_draft else changed(self, **fields)

    @property
    def issued(self) -> int:
        """Tickets ever claimed."""
        return self.next_index - len(self.passed) + self.further

    @property
    def claimed(self) -> int:
        """Tickets that hold a place in some batch: ever claimed, but for those dropped, and those that came back with nothing in."""
        return self.issued - self.dropped - self.entries.placeless

    @property
    def duplicates(self) -> int:
        """Submissions of what was in already."""
        return self.receipts.get("duplicate", 0)

    def knows(self, index: TicketIndex) -> bool:
        """The ticket was claimed once; it may be forgotten since."""
        if self.policy.is_further(index):
            return index in self.entries or 0 <= self.policy.step_of(index) < min(self.version, self.policy.steps)
        return 0 <= index < self.next_index and index not in self.passed

    def left(self, index: TicketIndex) -> list[int]:
        """Samples of a claimed ticket still to draw."""
        entry = self.entries[index]
        return [sample for sample in range(self.policy.group_size) if sample not in entry.submitted and sample not in entry.dropped]

    def open_indices(self) -> list[TicketIndex]:
        """Returned tickets, oldest first."""
        return sorted(self.entries.open())

    def members(self, step: int) -> list[TicketIndex]:
        """Tickets of a fixed batch, in order."""
        return [index for index in self.entries.of_step(step) if self.entries[index].state is not TicketState.DROPPED]

    def left_out(self, step: int, reason: str = ZERO_VARIANCE) -> list[TicketIndex]:
        """Tickets dropped for `reason` as the batch was to be made, in order; those without signal it was refilled for."""
        entries = self.entries
        return [index for index in entries.of_step(step) if entries[index].reason == reason]

    def balance(self) -> dict[str, int]:
        """Tickets by state; the values sum to `issued`, always."""
        counts = {state.value: self.entries.count(state) for state in _STATES}
        counts[TicketState.TRAINED] += self.forgotten
        counts[TicketState.DROPPED] = self.dropped
        return counts


def has_signal(entry: TicketEntry) -> bool:
    """Two of its judged samples have different rewards; without, every advantage of the group is zero."""
    return len(entry.rewards) > 1


def too_old(state: LedgerState, entry: TicketEntry) -> bool:
    """No batch to come could train on what is in."""
    return entry.oldest is not None and state.batched - entry.oldest > state.policy.eta
