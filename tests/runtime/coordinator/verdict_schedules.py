"""Samplers, graders and a coordinator's queue of verdicts, with messages that are late, lost or doubled, and processes that die. Pure.

A schedule is a list of numbers; the same list is the same story. After it everybody works undisturbed for a while, and then every reply
has one verdict, the right one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.runtime.coordinator.verdict_messages import Order, Reply, Verdict
from slipstream.runtime.coordinator.verdicts import LOSSES, Verdicts
from slipstream.runtime.join.pending import Pending

SAMPLERS, GRADERS, ROUNDS = 2, 2, 60
Op = tuple[int, int]


def reply(number: int) -> Reply:
    return Reply(ticket_index=number, sample=number % 3, content=f"{number:032x}", text=f"reply {number}")


def truth(one: Reply) -> Outcome:
    return Outcome(kind=OutcomeKind.VALUE, reward=one.ticket_index / 3)


@dataclass
class Sampler:
    name: str
    epoch: int = 1
    pending: Pending = field(default_factory=Pending)
    wanted: dict[str, Reply] = field(default_factory=dict)
    got: dict[str, Outcome] = field(default_factory=dict)


@dataclass
class Grader:
    name: str
    epoch: int = 1
    held: dict[str, Order] = field(default_factory=dict)


class World:
    """`make_queue` and `make_pending` may be worse than the real ones."""

    def __init__(self, make_queue: Callable[[], Verdicts] = Verdicts, make_pending: Callable[[], Pending] = Pending) -> None:
        self.make_queue, self.make_pending = make_queue, make_pending
        self.queue, self.now_s, self.replies = make_queue(), 0.0, 0
        self.samplers = [Sampler(f"sampler-{one}", pending=make_pending()) for one in range(SAMPLERS)]
        self.graders = [Grader(f"grader-{one}") for one in range(GRADERS)]
        self.here = {one.name: one.epoch for one in (*self.samplers, *self.graders)}
        self.flying: list[Callable[[bool], None]] = []  # messages under way; called with whether the answer arrives
        self.losses = 0

    def draw(self, sampler: Sampler) -> None:
        made = reply(self.replies)
        self.replies += 1
        sampler.wanted[made.name] = made
        sampler.pending.add(made)

    def ask(self, sampler: Sampler) -> None:
        pending, party, replies = sampler.pending, (sampler.name, sampler.epoch), sampler.pending.unasked(3)

        def arrive(answered: bool) -> None:
            if self.refuses(party):
                return
            taken = self.queue.ask(party, replies, self.now_s)
            if answered:
                pending.asked(replies[:taken])

        self.flying.append(arrive)

    def collect(self, sampler: Sampler) -> None:
        pending, party, (had, waiting) = sampler.pending, (sampler.name, sampler.epoch), sampler.pending.report()

        def arrive(answered: bool) -> None:
            if self.refuses(party):
                return
            unknown, verdicts = self.queue.collect(party, had, waiting), self.queue.done(party)
            if answered and pending is sampler.pending:
                for verdict in pending.received(had, verdicts, unknown):
                    assert verdict.name not in sampler.got, f"{sampler.name} got {verdict.name} twice"
                    sampler.got[verdict.name] = verdict.outcome

        self.flying.append(arrive)

    def take(self, grader: Grader, room: int) -> None:
        party, holding = (grader.name, grader.epoch), [*grader.held]

        def arrive(answered: bool) -> None:
            if self.refuses(party):
                return
            self.queue.give_back(party, holding)
            alone = not any(one.name in self.here for one in self.graders if one is not grader)
            orders = self.queue.take(party, room, alone=alone, now_s=self.now_s)
            assert len(orders) <= room
            if answered and party[1] == grader.epoch:
                grader.held |= {order.name: order for order in orders}

        self.flying.append(arrive)

    def hand_in(self, grader: Grader, fails: bool) -> None:
        party, judged = (grader.name, grader.epoch), [*grader.held.values()][:2]
        failed = Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail="it broke")
        verdicts = [Verdict(name=order.name, outcome=failed if fails else truth(order.reply)) for order in judged]

        def arrive(answered: bool) -> None:
            if self.refuses(party):
                return
            for verdict in verdicts:
                self.queue.hand_in(party[0], verdict, self.now_s)
            if answered and party[1] == grader.epoch:
                for verdict in verdicts:
                    grader.held.pop(verdict.name, None)

        self.flying.append(arrive)

    def refuses(self, party: tuple[str, int]) -> bool:
        return self.here.get(party[0]) != party[1]

    def lose(self, one: Sampler | Grader, *, noticed: bool) -> None:
        """Its lease ends; `noticed`: by itself too, else it goes on as a zombie until `revive`."""
        self.losses += isinstance(one, Grader) and one.name in self.here
        self.here.pop(one.name, None)
        self.queue.keep(self.here)
        if noticed:
            self.revive(one)

    def revive(self, one: Sampler | Grader) -> None:
        """It joins anew, and has nothing in hand."""
        if one.name in self.here:
            return
        one.epoch += 1
        self.here[one.name] = one.epoch
        self.queue.keep(self.here)
        if isinstance(one, Grader):
            one.held = {}
            return
        one.pending = self.make_pending()  # what it waited for is drawn again
        for name, made in one.wanted.items():
            if name not in one.got:
                one.pending.add(made)

    def play(self, ops: Sequence[Op]) -> None:
        for kind, number in ops:
            self.act(kind, number)
            self.check()

    def act(self, kind: int, number: int) -> None:
        sampler, grader = self.samplers[number % SAMPLERS], self.graders[number % GRADERS]
        place = number % len(self.flying) if self.flying else 0
        self.now_s += 0.1
        if kind < 8:
            self.draw(sampler)
        elif kind < 16:
            self.ask(sampler)
        elif kind < 24:
            self.collect(sampler)
        elif kind < 32:
            self.take(grader, 1 + number % 4)
        elif kind < 40:
            self.hand_in(grader, fails=number % 7 == 0)
        elif kind < 43:
            self.queue = self.make_queue()  # the coordinator is started anew
        elif kind < 48:
            self.lose((*self.samplers, *self.graders)[number % (SAMPLERS + GRADERS)], noticed=number % 3 > 0)
        elif kind < 51:
            self.revive((*self.samplers, *self.graders)[number % (SAMPLERS + GRADERS)])
        elif kind < 53:
            self.now_s += 500.0
            self.losses += len(self.queue.expire(self.now_s))
        elif self.flying and kind < 58:
            self.flying.append(self.flying[place])  # the message comes twice
        elif self.flying:
            self.flying.pop(place)(number % 5 > 0)

    def settle(self) -> None:
        """Undisturbed rounds until every verdict is there."""
        for one in (*self.samplers, *self.graders):
            self.revive(one)
        for _ in range(ROUNDS):
            for sampler in self.samplers:
                self.ask(sampler)
                self.collect(sampler)
            for grader in self.graders:
                self.hand_in(grader, fails=False)
                self.take(grader, 8)
            while self.flying:
                self.flying.pop(0)(True)
                self.check()
            if all(sampler.got.keys() == sampler.wanted.keys() and not sampler.pending.waits for sampler in self.samplers):
                break
        for sampler in self.samplers:
            assert sampler.got.keys() == sampler.wanted.keys(), "a verdict never came"
            for name, outcome in sampler.got.items():
                failed = outcome.kind is OutcomeKind.INFRASTRUCTURE and (outcome.detail == "it broke" or self.losses >= LOSSES)
                assert failed or outcome == truth(sampler.wanted[name])
        for grader in self.graders:
            self.queue.give_back((grader.name, grader.epoch), ())
        assert not self.queue.stages(), "something is left behind"

    def check(self) -> None:
        """Everything that has no verdict is waited for by one sampler that is here, and with one grader that is here, or queued."""
        moment = self.queue.moment(self.now_s)
        assert sum(moment.waiting.values()) == moment.queued + sum(moment.held.values())
        assert set(moment.waiting) | set(moment.held) <= set(self.here)
