"""The queue of verdicts under random schedules, each worse rule found out by them, and its limits by hand."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.runtime.coordinator.verdict_messages import Verdict
from slipstream.runtime.coordinator.verdicts import LOSSES, Stage, VerdictReceipt, Verdicts
from slipstream.runtime.join.pending import Pending
from tests.runtime.coordinator.verdict_schedules import World, reply, truth

OPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 999)), max_size=120)
FAILED = Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail="no sandbox")
SAMPLER = ("sampler-0", 1)


@settings(max_examples=150, deadline=None)
@given(OPS)
def test_whatever_is_lost_doubled_late_or_dies_every_reply_gets_its_one_verdict(ops: list[tuple[int, int]]) -> None:
    world = World()
    world.play(ops)
    world.settle()


def schedules(count: int, world: Callable[[], World]) -> None:
    for seed in range(count):
        rng, one = random.Random(seed), world()
        one.play([(rng.randrange(100), rng.randrange(1000)) for _ in range(rng.randrange(20, 160))])
        one.settle()


def test_hundreds_of_longer_schedules() -> None:
    schedules(500, World)


class NothingComesBack(Verdicts):
    def keep(self, here):
        super().keep({**here, **dict(iter(self._held))})


class LostOrdersStayLost(Verdicts):
    def give_back(self, grader, holding):
        pass


class KnowsEverything(Verdicts):
    def collect(self, owner, taken, waiting):
        super().collect(owner, taken, waiting)
        return []


class LastWriteWins(Verdicts):
    def hand_in(self, grader, verdict, now_s):
        if (entry := self._entries.get(verdict.name)) is not None and entry.stage is Stage.DONE:
            self._done[entry.owner][entry.name] = Verdict(name=entry.reply.name, outcome=FAILED)
        return super().hand_in(grader, verdict, now_s)


class TakesTwice(Pending):
    def received(self, told, verdicts, unknown):
        super().received(told, verdicts, unknown)
        return list(verdicts)


class NeverAsksAgain(Pending):
    def received(self, told, verdicts, unknown):
        return super().received(told, verdicts, ())


@pytest.mark.parametrize("worse", [NothingComesBack, LostOrdersStayLost, KnowsEverything, LastWriteWins, TakesTwice, NeverAsksAgain])
def test_schedules_find_out_worse_rules(worse: type[Verdicts] | type[Pending]) -> None:
    parts = {"make_pending": worse} if issubclass(worse, Pending) else {"make_queue": worse}
    with pytest.raises(AssertionError):
        schedules(300, lambda: World(**parts))


def test_a_failure_goes_to_another_grader_once_and_then_it_is_the_outcome() -> None:
    queue = Verdicts()
    queue.ask(SAMPLER, [reply(1), reply(2)], 0.0)
    (first, second) = queue.take(("grader-0", 1), 8, alone=False, now_s=1.0)
    assert queue.hand_in("grader-0", Verdict(name=first.name, outcome=FAILED), 2.0) is VerdictReceipt.AGAIN
    assert queue.take(("grader-0", 1), 8, alone=False, now_s=2.0) == []  # not to the one that failed, while there are others
    (again,) = queue.take(("grader-0", 1), 8, alone=True, now_s=2.0)
    assert again == first
    queue.give_back(("grader-0", 1), [second.name])
    assert queue.take(("grader-1", 1), 1, alone=False, now_s=3.0) == [first]
    assert queue.hand_in("grader-1", Verdict(name=first.name, outcome=FAILED), 4.0) is VerdictReceipt.ACCEPTED
    assert queue.hand_in("grader-0", Verdict(name=second.name, outcome=truth(second.reply)), 4.0) is VerdictReceipt.ACCEPTED
    assert queue.hand_in("grader-1", Verdict(name=second.name, outcome=FAILED), 4.0) is VerdictReceipt.DUPLICATE
    assert queue.hand_in("grader-1", Verdict(name="sampler-9.1/x", outcome=FAILED), 4.0) is VerdictReceipt.UNWANTED
    assert [verdict.outcome for verdict in queue.done(SAMPLER)] == [FAILED, truth(reply(2))]
    assert (queue.verdicts, queue.waited_s) == ({"grader-0": 1, "grader-1": 1}, 8.0)


def test_a_reply_that_its_graders_die_on_is_given_up_with_a_cause() -> None:
    queue = Verdicts()
    queue.ask(SAMPLER, [reply(1)], 0.0)
    for loss in range(LOSSES):
        assert len(queue.take(("grader-0", loss), 1, alone=True, now_s=0.0)) == 1
        queue.keep({"sampler-0": 1})
    (verdict,) = queue.done(SAMPLER)
    assert verdict.outcome.kind is OutcomeKind.INFRASTRUCTURE
    assert verdict.outcome.detail == "5 graders were lost while they judged it, grader-0 the last"


def test_an_order_that_takes_too_long_may_be_had_by_another_and_the_first_verdict_counts() -> None:
    queue = Verdicts(longest_s=60.0)
    queue.ask(SAMPLER, [reply(1)], 0.0)
    (order,) = queue.take(("slow", 1), 1, alone=False, now_s=0.0)
    assert queue.expire(60.0) == []
    assert queue.expire(61.0) == [order.name]
    assert queue.take(("quick", 1), 1, alone=False, now_s=61.0) == [order]
    assert queue.hand_in("slow", Verdict(name=order.name, outcome=truth(order.reply)), 62.0) is VerdictReceipt.ACCEPTED
    assert queue.moment(62.0).held == {}


def test_there_is_room_for_so_many_replies_and_letters() -> None:
    queue = Verdicts(most_replies=3, most_characters=20)
    assert queue.ask(SAMPLER, [reply(number) for number in range(4)], 0.0) == 2  # of seven letters each
    assert queue.ask(SAMPLER, [reply(0), reply(1)], 0.0) == 2  # known already
    (order, _) = queue.take(("grader-0", 1), 8, alone=True, now_s=0.0)
    queue.hand_in("grader-0", Verdict(name=order.name, outcome=truth(order.reply)), 0.0)
    assert queue.ask(SAMPLER, [reply(2)], 0.0) == 0
    queue.collect(SAMPLER, [order.reply.name], [])
    assert queue.ask(SAMPLER, [reply(2)], 0.0) == 1
