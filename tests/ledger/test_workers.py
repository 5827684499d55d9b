"""Workers that come and go on a real journal: leases, epochs, partial tokens, staleness, caps; and snapshots, which nobody may notice."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import RolloutRefused, RunFailed, StaleEpoch
from slipstream.core.records import Membership, Partial, Progress, Ticket
from slipstream.ledger.entries import TicketState
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy
from tests.ledger.rollouts import NumberedPrompts, make_rollout

POLICY = Policy(prompts_per_step=1, group_size=2, eta=1, pinned=False, steps=6)
LEASE_S = 3.0


class Bench:
    """A ledger with its clock, opened again at will."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.warnings = path, ManualClock(), list[str]()
        self.policy = POLICY
        self.ledger = self.open()

    def open(self, policy: Policy = POLICY, snapshot_events: int = 1_000_000) -> Ledger:
        self.policy = policy
        self.ledger = Ledger(
            self.path,
            policy,
            NumberedPrompts(),
            self.clock,
            environment_of=lambda index: "odd" if index % 2 else "even",
            lease_s=LEASE_S,
            stalled_s=20.0,
            snapshot_events=snapshot_events,
            warn=self.warnings.append,
        )
        return self.ledger

    def anew(self, policy: Policy) -> Ledger:
        """An empty ledger of other rules."""
        self.ledger.close()
        self.path = self.path.with_suffix(".other")
        return self.open(policy)

    def again(self) -> Ledger:
        self.ledger.close()
        return self.open(self.policy)

    def sampler(self, name: str = "a") -> Membership:
        return self.ledger.join("sampler", name, {"device": "cpu"})

    def claim(self, member: Membership, tickets: int = 1) -> list[Ticket]:
        return self.ledger.claim(member.worker, tickets, self.ledger.state.version, epoch=member.epoch)

    def train(self, ticket: Ticket, *samples: int) -> None:
        """Hand in what is missing of the next batch, which is this ticket, and train on it."""
        version = self.ledger.state.version
        self.ledger.submit([make_rollout(ticket, sample, [version]) for sample in samples or ticket.samples])
        assert self.ledger.batch(version) is not None
        self.ledger.commit(version)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "journal.sqlite")
    yield made
    made.ledger.close()


def partial(ticket: Ticket, sample: int, *versions: int) -> Partial:
    tokens = len(versions)
    ids, logprobs = np.arange(tokens, dtype=np.int32), np.full(tokens, -0.25, np.float32)
    return Partial(ticket_index=ticket.index, sample=sample, completion_ids=ids, logprobs=logprobs, versions=np.array(versions, np.int32))


def test_the_same_process_is_the_same_worker_one_epoch_later_and_has_nothing(bench: Bench) -> None:
    first, other = bench.sampler(), bench.sampler("b")
    assert (first.worker, first.epoch, first.term, first.lineage, first.lease_s) == ("sampler-0", 1, 1, 0, LEASE_S)
    assert other.worker == "sampler-1"
    (ticket,) = bench.claim(first)
    again = bench.sampler()
    assert (again.worker, again.epoch) == ("sampler-0", 2)
    assert bench.ledger.state.entries[ticket.index].state is TicketState.OPEN
    assert bench.ledger.counters()["returned"] == {"restarted": 1}
    stale: list[Callable[[], object]] = [
        lambda: bench.ledger.renew(first.worker, first.epoch, Progress()),
        lambda: bench.claim(first),
        lambda: bench.ledger.save_progress(first.worker, first.epoch, []),
        lambda: bench.ledger.leave(first.worker, first.epoch),
        lambda: bench.ledger.check("sampler-9", 1),
    ]
    for call in stale:
        with pytest.raises(StaleEpoch, match="join again"):
            call()
    assert bench.ledger.renew(again.worker, again.epoch, Progress()).newest == 0


def test_a_lease_lives_by_renewals_and_its_tickets_go_to_others_when_it_ends(bench: Bench) -> None:
    frozen, alive = bench.sampler("frozen"), bench.sampler("alive")
    (ticket,) = bench.claim(frozen)
    bench.clock.advance(LEASE_S - 1)
    bench.ledger.renew(alive.worker, alive.epoch, Progress(tokens=1))
    assert bench.ledger.expire() == []
    bench.clock.advance(2)
    assert bench.ledger.expire() == [frozen.worker]
    assert bench.ledger.expire() == []
    (taken,) = bench.claim(alive)
    assert (taken.index, taken.samples) == (ticket.index, (0, 1))
    late = make_rollout(ticket, 0, [0], sampler=frozen.worker)
    assert bench.ledger.submit([late]) == ["accepted"]  # a stale epoch makes no token worse
    assert bench.ledger.submit([make_rollout(taken, 0, [0, 0]), make_rollout(taken, 1, [0])]) == ["conflict", "accepted"]
    with pytest.raises(StaleEpoch, match="is gone"):
        bench.ledger.renew(frozen.worker, frozen.epoch, Progress())
    assert bench.ledger.counters()["workers"] == {"sampler": 1}


def test_who_lives_and_does_not_get_on_loses_its_tickets(bench: Bench) -> None:
    stuck, idle = bench.sampler("stuck"), bench.sampler("idle")
    bench.claim(stuck)
    gone: list[str] = []
    for _ in range(15):
        bench.clock.advance(2)
        gone += bench.ledger.expire()
        for member in (stuck, idle):
            if member.worker not in gone:
                bench.ledger.renew(member.worker, member.epoch, Progress(tokens=5, phase="generate"))
    assert gone == [stuck.worker]
    assert bench.ledger.progress()[idle.worker].phase == "generate"


def test_a_polite_leave_gives_back_at_once_and_a_drained_worker_gets_nothing(bench: Bench) -> None:
    member = bench.sampler()
    (ticket,) = bench.claim(member)
    bench.ledger.drain(member.worker)
    assert bench.ledger.renew(member.worker, member.epoch, Progress()).drain
    assert bench.claim(member) == []
    for _ in range(2):  # a repeated message changes nothing
        bench.ledger.leave(member.worker, member.epoch)
    assert bench.ledger.state.entries[ticket.index].state is TicketState.OPEN
    back = bench.sampler()
    assert not bench.ledger.renew(back.worker, back.epoch, Progress()).drain
    assert [one.index for one in bench.claim(back)] == [ticket.index]


def test_tickets_whose_answer_was_lost_come_back_with_the_next_claim(bench: Bench) -> None:
    member = bench.sampler()
    (known,) = bench.claim(member)
    (lost,) = bench.claim(member)
    again = bench.ledger.claim(member.worker, 5, 0, epoch=member.epoch, holding=[known.index])
    assert [ticket.index for ticket in again] == [lost.index]
    assert bench.ledger.counters()["returned"] == {"lost": 1}


def test_a_new_start_of_the_coordinator_is_a_term_and_nobody_else_dies(bench: Bench) -> None:
    member = bench.sampler()
    (ticket,) = bench.claim(member)
    bench.clock.advance(100)
    bench.again()
    assert bench.ledger.state.term == 2
    assert bench.ledger.expire() == []  # everyone gets a new deadline
    bench.ledger.renew(member.worker, member.epoch, Progress())
    bench.ledger.restart(0)  # the learner comes back at the newest version
    assert bench.ledger.state.entries[ticket.index].state is TicketState.LEASED
    bench.train(ticket)
    bench.ledger.restart(0)  # and now at an older one: another lineage begins
    with pytest.raises(StaleEpoch):
        bench.ledger.renew(member.worker, member.epoch, Progress())
    assert bench.sampler().lineage == 1
    bench.clock.advance(LEASE_S)
    assert bench.ledger.expire() == ["sampler-0"]


def test_partial_tokens_go_to_the_next_claimer_also_after_a_restart(bench: Bench) -> None:
    member, next_one = bench.sampler(), bench.sampler("b")
    (ticket,) = bench.claim(member)
    sent = [partial(ticket, 0, 0, 0, 0), partial(ticket, 1, 0)]
    bench.ledger.save_progress(member.worker, member.epoch, [sent[0], partial(ticket, 1, 0, 0)])
    bench.ledger.save_progress(member.worker, member.epoch, sent[1:])  # the later word counts
    bench.ledger.leave(member.worker, member.epoch)
    bench.again()
    (taken,) = bench.claim(next_one)
    for got, given in zip(taken.partials, sent, strict=True):
        assert (got.ticket_index, got.sample) == (given.ticket_index, given.sample)
        for name in ("completion_ids", "logprobs", "versions"):
            assert np.array_equal(getattr(got, name), getattr(given, name))
    bench.ledger.submit([make_rollout(taken, 0, [0, 0])])
    bench.ledger.leave(next_one.worker, next_one.epoch)
    last = bench.sampler("c")
    (finishing,) = bench.claim(last)
    assert [one.sample for one in finishing.partials] == [1]  # sample 0 is in
    bench.train(finishing)
    assert rows(bench.path, "partial") == 0


def test_partial_tokens_of_another_version_are_refused_and_damaged_ones_are_lost(bench: Bench) -> None:
    bench.anew(replace(POLICY, pinned=True))
    member = bench.sampler()
    (ticket,) = bench.claim(member)
    save = bench.ledger.save_progress
    nan = replace(partial(ticket, 0, 0), logprobs=np.array([np.nan], np.float32))
    for wrong, message in (
        (partial(ticket, 0, 0, 1), "versions are 0 to 1, and only 0 may draw it"),
        (nan, "log-prob of token 0 is nan"),
        (partial(ticket, 2, 0), "sample must be 0 to 1"),
        (replace(partial(ticket, 0, 0), ticket_index=5), "nobody claimed ticket 5"),
        (replace(partial(ticket, 0, 0), logprobs=np.zeros(3, np.float32)), r"logprobs is float32 \(3,\)"),
        (partial(ticket, 0), "has no tokens"),
    ):
        with pytest.raises(RolloutRefused, match=message):
            save(member.worker, member.epoch, [wrong])
    save(member.worker, member.epoch, [partial(ticket, 0, 0), partial(ticket, 1, 0)])
    bench.ledger.leave(member.worker, member.epoch)
    change(bench.path, "update partial set content = cast(x'00' || substr(content, 2) as blob) where sample = 0")
    back = bench.sampler()
    (taken,) = bench.claim(back)
    assert [one.sample for one in taken.partials] == [1]
    bench.train(taken)
    (begun,) = bench.ledger.claim(back.worker, 1, 0, epoch=back.epoch)
    save(back.worker, back.epoch, [partial(begun, 0, begun.version_pinned or 0)])
    assert rows(bench.path, "partial") == 1
    bench.ledger.restart(0)
    assert rows(bench.path, "partial") == 0  # what another lineage drew is nothing to go on from


@pytest.mark.parametrize("staleness", ["drop", "requeue"])
def test_a_slow_group_is_let_go_and_counted_with_its_length(bench: Bench, staleness: str) -> None:
    """The first ticket's long sample is in, its other one is not; two batches go by."""
    ledger = bench.anew(replace(POLICY, staleness=staleness))
    slow, fast = bench.sampler("slow"), bench.sampler("fast")
    (long,) = bench.claim(slow)
    first = make_rollout(long, 0, [0] * 9)
    ledger.submit([first])
    for _ in range(2):
        (quick,) = bench.claim(fast)
        bench.train(quick)
    assert ledger.state.entries[long.index].state is TicketState.LEASED  # somebody works on it; let that end
    receipts = ledger.submit([make_rollout(long, 1, [1])])
    assert receipts == ["accepted"]
    counted = ledger.counters()
    assert counted["lengths"] == {"batched": 1.0, "stale": 5.0, "stale_samples": 2}
    live = 2 * (staleness == "requeue")
    assert counted["samples"] == {"issued": 6 + live, "batched": 4, "live": live, "dropped": {"stale": 2}}
    if staleness == "drop":
        (further,) = bench.claim(fast)
        bench.train(further)
        batch = ledger.batch(2)
        assert batch is not None
        assert rollout_to_bytes(batch.dropped[0]) == rollout_to_bytes(first)
        assert (len(batch.dropped), batch.stale_samples, batch.refilled_groups) == (2, 2, 0)
        assert ledger.submit([first, make_rollout(long, 0, [2])]) == ["duplicate", "conflict"]
    else:
        assert ledger.submit([first]) == ["stale"]
        (anew,) = bench.claim(fast)
        assert (anew.index, anew.samples, anew.version_floor) == (long.index, (0, 1), 2)
        bench.train(anew)
        batch = ledger.batch(2)
        assert batch is not None
        assert [len(rollout.completion_ids) for rollout in batch.rollouts] == [1, 1]
        assert [rollout_to_bytes(one) for one in batch.aside] == [rollout_to_bytes(one) for one in (first, make_rollout(long, 1, [1]))]
    before = ledger.state
    bench.again()
    assert bench.ledger.state == replace(before, term=2)
    again = bench.ledger.batch(2)  # from the journal
    assert again is not None
    for part in ("rollouts", "dropped", "aside"):
        assert [rollout_to_bytes(one) for one in getattr(again, part)] == [rollout_to_bytes(one) for one in getattr(batch, part)]
    bench.ledger.forget_before(3)
    assert rows(bench.path, "aside") == 0


def test_no_more_tickets_of_an_environment_are_leased_than_its_cap(bench: Bench) -> None:
    bench.anew(replace(POLICY, prompts_per_step=3, caps={"odd": 1}))
    member = bench.sampler()
    tickets = bench.claim(member, 6)
    assert [ticket.index for ticket in tickets] == [0, 1, 2, 4]  # it looks only so far ahead as two batches
    assert [ticket.index for ticket in bench.claim(member, 6)] == [6, 8]
    assert bench.claim(member) == []
    bench.ledger.submit([make_rollout(tickets[1], sample, [0]) for sample in (0, 1)])
    bench.ledger.submit([make_rollout(tickets[ticket], sample, [0]) for ticket in (0, 2) for sample in (0, 1)])
    bench.ledger.batch(0)
    bench.ledger.commit(0)
    assert [ticket.index for ticket in bench.claim(member, 3)] == [3, 10]
    before = bench.ledger.state
    assert bench.again().state == replace(before, term=2)


def test_a_snapshot_saves_the_way_and_changes_nothing(bench: Bench) -> None:
    bench.ledger.close()
    bench.open(snapshot_events=8)
    member = bench.sampler()
    for _ in range(4):
        bench.train(bench.claim(member)[0])
    bench.ledger.save_progress(member.worker, member.epoch, [partial(bench.claim(member)[0], 0, 4)])
    state = bench.ledger.state
    assert rows(bench.path, "snapshot") == 1
    bench.ledger.close()
    with sqlite3.connect(bench.path) as database:  # what lies before the last snapshot is not even looked at
        database.execute("update event set body = 'nonsense' where seq between 2 and (select max(seq) from snapshot)")
    database.close()
    assert bench.open(snapshot_events=8).state == replace(state, term=3)
    assert bench.warnings == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("update snapshot set content = substr(content, 1, 500)", "digest"),
        ("update snapshot set content = replace(content, 'trained', 'batched')", "digest"),
        ("update snapshot set content = ''", "digest"),
        ("update snapshot set seq = seq + 1000", "the journal ends before it"),
    ],
)
def test_a_damaged_snapshot_is_told_of_and_the_journal_played_whole(bench: Bench, statement: str, message: str) -> None:
    member = bench.sampler()
    bench.train(bench.claim(member)[0])
    bench.ledger.save_snapshot()
    bench.train(bench.claim(member)[0])
    state = bench.ledger.state
    bench.ledger.close()
    change(bench.path, statement)
    assert bench.open().state == replace(state, term=2)
    (warning,) = bench.warnings
    assert message in warning


def test_a_snapshot_of_other_rules_is_not_used(bench: Bench) -> None:
    bench.ledger.save_snapshot()
    bench.ledger.close()
    with pytest.raises(RunFailed, match="began with another eta, staleness"):
        bench.open(replace(POLICY, eta=2, staleness="drop"))
    bench.open()


def rows(path: Path, table: str) -> int:
    database = sqlite3.connect(path)
    ((count,),) = database.execute(f"select count(*) from {table}").fetchall()
    database.close()
    return count


def change(path: Path, statement: str) -> None:
    """What a broken disk may do."""
    database = sqlite3.connect(path)
    assert database.execute(statement).rowcount == 1
    database.commit()
    database.close()
