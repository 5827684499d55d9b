"""Replies from the moment a sampler wants verdicts on them until it has them: a state machine. Pure; called by `coordinator.verdict_desk`.

Nothing of it is journalled, since nothing can be lost: samplers name all that they wait for, and send anew what is not known here. A
reply is named by its sampler and its content, so calls may come twice, late or in any order: the first verdict counts.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.runtime.coordinator.verdict_messages import Order, Reply, Verdict
from slipstream.telemetry.status import GradingStatus

MOST_REPLIES = 100_000
MOST_CHARACTERS = 1 << 28  # of their texts
LONGEST_S = 1_200.0  # on one reply; then another grader may have it
TRIES = 2  # graders that may fail on a reply before that is its outcome
LOSSES = 5  # graders that may die on a reply before that is its outcome

Party = tuple[str, int]
"""A worker and its epoch."""


class Stage(StrEnum):
    """Where a reply is."""

    WANTED = "wanted"
    LEASED = "leased"  # to a grader
    DONE = "done"  # until its sampler says that it has the verdict


ALLOWED: Mapping[Stage, frozenset[Stage]] = {
    Stage.WANTED: frozenset({Stage.LEASED, Stage.DONE}),  # done: by a grader whose lease was of an earlier coordinator
    Stage.LEASED: frozenset({Stage.WANTED, Stage.DONE}),
    Stage.DONE: frozenset(),
}


class VerdictReceipt(StrEnum):
    """What became of a verdict that was handed in."""

    ACCEPTED = "accepted"
    AGAIN = "again"  # the grader failed; another one tries
    DUPLICATE = "duplicate"  # there was one already
    UNWANTED = "unwanted"  # nobody waits for it (any more)


@dataclass(slots=True, kw_only=True)
class _Entry:
    """One reply; its name is the order's."""

    name: str
    reply: Reply
    owner: Party  # its sampler
    number: int  # place in the order of asking
    asked_s: float
    stage: Stage = Stage.WANTED
    grader: Party = ("", 0)  # that has it, where it is leased
    leased_s: float = 0.0
    failed_at: str = ""  # the grader that failed on it last
    failures: int = 0
    losses: int = 0

    def move(self, stage: Stage) -> None:
        assert stage in ALLOWED[self.stage], f"{self.name} cannot go from {self.stage} to {stage}"
        self.stage = stage


class Verdicts:
    """Of one coordinator. The caller serialises access, and says what time it is.

    Counts, never reset: `verdicts` accepted by grader, `receipts`, and `waited_s`: seconds from asking to verdict, summed.
    """

    def __init__(self, most_replies: int = MOST_REPLIES, most_characters: int = MOST_CHARACTERS, longest_s: float = LONGEST_S) -> None:
        self._most_replies, self._most_characters, self._longest_s = most_replies, most_characters, longest_s
        self._entries: dict[str, _Entry] = {}
        self._owners: set[Party] = set()
        self._done: dict[Party, dict[str, Verdict]] = {}
        self._held: dict[Party, dict[str, _Entry]] = {}
        self._wanted: list[tuple[int, str]] = []  # heap; also names that are wanted no more
        self._characters = self._number = 0
        self.verdicts: Counter[str] = Counter()
        self.receipts: Counter[VerdictReceipt] = Counter()
        self.waited_s = 0.0

    def ask(self, owner: Party, replies: Sequence[Reply], now_s: float) -> int:
        """How many of them, from the first on, are known now. The others have to be asked for later: there are too many."""
        self._owners.add(owner)
        for place, reply in enumerate(replies):
            if (name := _name(owner, reply.name)) in self._entries:
                continue
            if len(self._entries) >= self._most_replies or self._characters + len(reply.text) > self._most_characters:
                return place
            self._number += 1
            entry = _Entry(name=name, reply=reply, owner=owner, number=self._number, asked_s=now_s)
            self._entries[name] = entry
            self._characters += len(reply.text)
            heapq.heappush(self._wanted, (entry.number, name))
        return len(replies)

    def collect(self, owner: Party, taken: Iterable[str], waiting: Iterable[str]) -> list[str]:
        """Forget the replies whose verdict the sampler has. Names of those that it waits for and that are not known here."""
        for name in taken:
            entry = self._entries.get(_name(owner, name))
            if entry is not None and entry.stage is Stage.DONE:
                self._forget(entry)
        return [name for name in waiting if _name(owner, name) not in self._entries]

    def done(self, owner: Party) -> list[Verdict]:
        """All verdicts that the sampler has not said it has."""
        return [*self._done.get(owner, {}).values()]

    def owner(self, order: str) -> Party | None:
        """The sampler that waits for a verdict; None where none does (any more)."""
        entry = self._entries.get(order)
        return entry.owner if entry else None

    def give_back(self, grader: Party, holding: Collection[str]) -> None:
        """Orders that are leased to a grader, and that it does not have, got lost on the way to it: they are wanted again."""
        known = frozenset(holding)
        for entry in [entry for name, entry in self._held.get(grader, {}).items() if name not in known]:
            self._give_back(entry)

    def take(self, grader: Party, room: int, *, alone: bool, now_s: float) -> list[Order]:
        """Lease up to `room` replies to a grader, the oldest first. `alone`: no other is here, so it also gets those that it failed on."""
        held = self._held.setdefault(grader, {})
        found: list[Order] = []
        passed: list[_Entry] = []
        while len(found) < room and (entry := self._next()) is not None:
            if entry.failed_at == grader[0] and not alone:
                passed.append(entry)
                continue
            entry.move(Stage.LEASED)
            entry.grader, entry.leased_s = grader, now_s
            held[entry.name] = entry
            found.append(Order(name=entry.name, reply=entry.reply))
        for entry in passed:
            heapq.heappush(self._wanted, (entry.number, entry.name))
        return found

    def hand_in(self, grader: str, verdict: Verdict, now_s: float) -> VerdictReceipt:
        """A verdict of a grader that is here, whoever has the lease now."""
        receipt = self._receive(grader, verdict, now_s)
        self.receipts[receipt] += 1
        return receipt

    def _receive(self, grader: str, verdict: Verdict, now_s: float) -> VerdictReceipt:
        entry = self._entries.get(verdict.name)
        if entry is None:
            return VerdictReceipt.UNWANTED
        if entry.stage is Stage.DONE:
            return VerdictReceipt.DUPLICATE
        if verdict.outcome.kind is OutcomeKind.INFRASTRUCTURE:
            entry.failures, entry.failed_at = entry.failures + 1, grader
            if entry.failures < TRIES:
                if entry.stage is Stage.LEASED:
                    self._give_back(entry)
                return VerdictReceipt.AGAIN
        self.verdicts[grader] += 1
        self.waited_s += now_s - entry.asked_s
        self._end(entry, verdict.outcome)
        return VerdictReceipt.ACCEPTED

    def keep(self, here: Mapping[str, int]) -> None:
        """Who is here, with epochs. What others were judging comes back; what others wanted is wanted no more."""
        gone = {party for party in self._owners if here.get(party[0]) != party[1]}
        for entry in [entry for entry in self._entries.values() if entry.owner in gone]:
            self._forget(entry)
        for party in gone:
            self._done.pop(party, None)
        self._owners -= gone
        for party in [party for party in self._held if here.get(party[0]) != party[1]]:
            for entry in [*self._held[party].values()]:
                self._lose(entry)
            del self._held[party]

    def expire(self, now_s: float) -> list[str]:
        """Names of orders that took too long, and may be had by another grader."""
        late = [entry for held in self._held.values() for entry in held.values() if now_s - entry.leased_s > self._longest_s]
        for entry in late:
            self._lose(entry)
        return [entry.name for entry in late]

    def stages(self) -> Counter[Stage]:
        """Replies by where they are."""
        return Counter(entry.stage for entry in self._entries.values())

    def moment(self, now_s: float) -> GradingStatus:
        """For people."""
        waiting = Counter(entry.owner[0] for entry in self._unjudged())
        return GradingStatus(
            waiting=dict(waiting),
            held={grader: len(held) for (grader, _), held in self._held.items() if held},
            queued=sum(entry.stage is Stage.WANTED for entry in self._unjudged()),
            oldest_s=round(max((now_s - entry.asked_s for entry in self._unjudged()), default=0.0), 3),
        )

    def _unjudged(self) -> Iterator[_Entry]:
        return (entry for entry in self._entries.values() if entry.stage is not Stage.DONE)

    def _next(self) -> _Entry | None:
        """The wanted reply that was asked for first, taken off the heap."""
        while self._wanted:
            number, name = heapq.heappop(self._wanted)
            entry = self._entries.get(name)
            if entry is not None and entry.number == number and entry.stage is Stage.WANTED:
                return entry
        return None

    def _give_back(self, entry: _Entry) -> None:
        self._release(entry)
        entry.move(Stage.WANTED)
        heapq.heappush(self._wanted, (entry.number, entry.name))

    def _lose(self, entry: _Entry) -> None:
        """Its grader is gone, or as good as gone."""
        entry.losses += 1
        if entry.losses < LOSSES:
            self._give_back(entry)
            return
        detail = f"{LOSSES} graders were lost while they judged it, {entry.grader[0]} the last"
        self._end(entry, Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail=detail))

    def _end(self, entry: _Entry, outcome: Outcome) -> None:
        self._release(entry)
        entry.move(Stage.DONE)
        self._done.setdefault(entry.owner, {})[entry.name] = Verdict(name=entry.reply.name, outcome=outcome)

    def _forget(self, entry: _Entry) -> None:
        self._release(entry)
        del self._entries[entry.name]
        self._done.get(entry.owner, {}).pop(entry.name, None)
        self._characters -= len(entry.reply.text)

    def _release(self, entry: _Entry) -> None:
        if entry.stage is Stage.LEASED:
            self._held[entry.grader].pop(entry.name, None)


def _name(owner: Party, reply: str) -> str:
    """The order's name: unique to one sampler's epoch."""
    return f"{owner[0]}.{owner[1]}/{reply}"
