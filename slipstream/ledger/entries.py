"""The tickets of a ledger state: an immutable mapping whose changed copies share nearly everything. Pure; part of `state.LedgerState`.

A plain dict would be copied whole at every event. Here tickets lie in chunks of neighbours, and a change copies one chunk and the table
of chunks. What is asked for all the time (tickets by state, places held, members of a batch) is kept up to date with each change.
Many changes in a row go through a `draft`, which copies each of these once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SampleIndex = int
TicketIndex = int

CHUNK_BITS = 7  # 128 neighbours a chunk: for 10^5 tickets a change then copies some 900 pointers
WORKER_BUCKETS = 64  # of workers' leases, for the same reason


class TicketState(StrEnum):
    """Where a ticket stands. DROPPED is terminal, and TRAINED too (until a restart from an older checkpoint puts it back to BATCHED)."""

    OPEN = "open"  # was claimed once and came back; claimable again
    LEASED = "leased"  # a sampler works on it
    GROUPED = "grouped"  # all its samples are in (or dropped)
    BATCHED = "batched"  # fixed member of a batch
    TRAINED = "trained"  # its batch has run
    DROPPED = "dropped"  # left out of a batch


LIVE = frozenset({TicketState.OPEN, TicketState.LEASED, TicketState.GROUPED})


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
    tokens: int = 0  # completion tokens of the samples that are in
    reason: str = ""  # why it was dropped


def holds_place(entry: TicketEntry) -> bool:
    """A returned ticket holds its place only when some of its samples are in: their tokens keep their age."""
    return entry.state is not TicketState.OPEN or entry.oldest is not None


class Entries(Mapping[TicketIndex, TicketEntry]):
    """Tickets by index. `updated` and `without_steps` give changed copies; nothing changes in place, but for drafts."""

    TABLES = ("_counts", "_held", "_live", "_open", "_size", "_steps", "placeless")  # kept up to date beside the chunks
    __slots__ = ("_chunks", "_own", "_owns_tables", *TABLES)

    def __init__(self) -> None:
        self._chunks: dict[int, dict[TicketIndex, TicketEntry]] = {}
        self._counts: dict[TicketState, int] = dict.fromkeys(TicketState, 0)
        self._live: dict[int, int] = {}  # how many are live, by chunk, where there are any
        self._open: dict[int, int] = {}  # how many are open, the same way
        self._steps: dict[int, frozenset[TicketIndex]] = {}
        self._held: dict[int, dict[str, frozenset[TicketIndex]]] = {}  # leased tickets by bucket and worker
        self._size = 0
        self.placeless = 0  # tickets that hold no place in a batch
        self._own: set[int] | None = None  # of a draft: the chunks that nobody else has
        self._owns_tables = False

    @classmethod
    def of(cls, entries: Mapping[TicketIndex, TicketEntry]) -> "Entries":
        """Those of any mapping."""
        return cls().updated(entries)

    def __getitem__(self, index: TicketIndex) -> TicketEntry:
        return self._chunks[index >> CHUNK_BITS][index]

    def get(self, key: TicketIndex, default: Any = None) -> Any:
        chunk = self._chunks.get(key >> CHUNK_BITS)
        return default if chunk is None else chunk.get(key, default)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[TicketIndex]:
        for chunk in self._chunks.values():
            yield from chunk

    def count(self, state: TicketState) -> int:
        """Tickets in a state."""
        return self._counts[state]

    def live(self) -> Iterator[tuple[TicketIndex, TicketEntry]]:
        """The open, leased and grouped ones, in no order."""
        for number in self._live:
            for index, entry in self._chunks[number].items():
                if entry.state in LIVE:
                    yield index, entry

    def open(self) -> Iterator[TicketIndex]:
        """The open ones, in no order."""
        for number in self._open:
            for index, entry in self._chunks[number].items():
                if entry.state is TicketState.OPEN:
                    yield index

    def held_by(self, worker: str) -> list[TicketIndex]:
        """Tickets leased to a worker, in order."""
        return sorted(self._held.get(_bucket(worker), {}).get(worker, ()))

    def steps(self) -> Iterable[int]:
        """The batches that any ticket is in or was left out of."""
        return self._steps.keys()

    def of_step(self, step: int) -> list[TicketIndex]:
        """Tickets in a batch or left out of it, in order."""
        return sorted(self._steps.get(step, ()))

    @property
    def is_draft(self) -> bool:
        return self._own is not None

    def draft(self) -> "Entries":
        """A copy that changes in place until it is sealed. Nobody else may hold it."""
        made = self._copy()
        made._own = set()
        return made

    def seal(self) -> None:
        """No draft from now on."""
        self._own = None

    def updated(self, changes: Mapping[TicketIndex, TicketEntry]) -> "Entries":
        """A copy with these entries new or replaced; of a draft itself."""
        made, own = self._to_change()
        moved: list[tuple[TicketIndex, TicketEntry | None, TicketEntry]] = []
        for index, entry in changes.items():
            chunk = made._own_chunk(index >> CHUNK_BITS, own)
            before = chunk.get(index)
            chunk[index] = entry
            if before is None or _standing(before) != _standing(entry):
                moved.append((index, before, entry))
        if moved:
            made._follow(moved)
        return made

    def without_steps(self, steps: Iterable[int]) -> "Entries":
        """A copy that has forgotten the tickets of these batches; of a draft itself."""
        made, own = self._to_change()
        made._own_all_tables()
        for index in (index for step in steps for index in made._steps.pop(step, ())):
            number = index >> CHUNK_BITS
            chunk = made._own_chunk(number, own)
            made._note(number, chunk.pop(index), -1)
            if not chunk:
                del made._chunks[number]
        return made

    def _to_change(self) -> tuple["Entries", set[int]]:
        """What a change is made to, and which of its chunks nobody else has."""
        return (self._copy(), set()) if self._own is None else (self, self._own)

    def _own_chunk(self, number: int, own: set[int]) -> dict[TicketIndex, TicketEntry]:
        if number not in own or number not in self._chunks:
            own.add(number)
            self._chunks[number] = dict(self._chunks.get(number, ()))
        return self._chunks[number]

    def _own_all_tables(self) -> None:
        if not self._owns_tables:
            self._counts, self._live, self._open = dict(self._counts), dict(self._live), dict(self._open)
            self._held, self._steps = dict(self._held), dict(self._steps)
            self._owns_tables = True

    def _copy(self) -> "Entries":
        """Its own table of chunks; all else is shared until it is about to change."""
        made = Entries.__new__(Entries)
        made._chunks = dict(self._chunks)
        made._counts, made._live, made._open = self._counts, self._live, self._open
        made._held, made._steps = self._held, self._steps
        made._size, made.placeless = self._size, self.placeless
        made._own, made._owns_tables = None, False
        return made

    def _follow(self, moved: Sequence[tuple[TicketIndex, TicketEntry | None, TicketEntry]]) -> None:
        """Bring everything but the chunks up to date with tickets that are new or stand elsewhere."""
        self._own_all_tables()
        joined: dict[int, set[TicketIndex]] = {}  # by step
        for index, before, entry in moved:
            if (left := _holder(before)) != (taken := _holder(entry)):
                self._move_lease(index, left, taken)
            if before is not None:
                self._note(index >> CHUNK_BITS, before, -1)
            self._note(index >> CHUNK_BITS, entry, 1)
            if entry.step is not None and (before is None or before.step != entry.step):
                joined.setdefault(entry.step, set()).add(index)
        for step, indices in joined.items():
            self._steps[step] = self._steps.get(step, frozenset()) | indices

    def _move_lease(self, index: TicketIndex, before: str | None, after: str | None) -> None:
        """From one worker to another; None is nobody."""
        if before is not None:
            self._held[_bucket(before)] = _without(self._held[_bucket(before)], before, index)
        if after is not None:
            bucket = self._held.get(_bucket(after), {})
            self._held[_bucket(after)] = {**bucket, after: bucket.get(after, frozenset()) | {index}}

    def _note(self, number: int, entry: TicketEntry, sign: int) -> None:
        """Count an entry of a chunk in (1) or out (-1)."""
        self._size += sign
        self._counts[entry.state] += sign
        self.placeless += sign * (not holds_place(entry))
        if entry.state in LIVE:
            _count(self._live, number, sign)
        if entry.state is TicketState.OPEN:
            _count(self._open, number, sign)


def _count(counts: dict[int, int], number: int, by: int) -> None:
    """Only what is not 0 is there."""
    counts[number] = counts.get(number, 0) + by
    if not counts[number]:
        del counts[number]


def _standing(entry: TicketEntry) -> tuple[TicketState, bool, str, int | None]:
    """All of a ticket that the tables beside the chunks depend on."""
    return entry.state, entry.oldest is None, entry.worker, entry.step


def _bucket(worker: str) -> int:
    return hash(worker) % WORKER_BUCKETS


def _holder(entry: TicketEntry | None) -> str | None:
    return entry.worker if entry is not None and entry.state is TicketState.LEASED else None


def _without(bucket: dict[str, frozenset[TicketIndex]], worker: str, index: TicketIndex) -> dict[str, frozenset[TicketIndex]]:
    """The bucket without a ticket of a worker, and without the worker after its last."""
    left = bucket[worker] - {index}
    return {**bucket, worker: left} if left else {name: held for name, held in bucket.items() if name != worker}
