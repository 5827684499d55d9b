"""The coordinator over HTTP with a real journal: a run through `RemoteLedger`, long polls, leases, terms; nothing here imports jax."""

import re
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import RunFailed, StaleEpoch
from slipstream.core.records import Receipt
from slipstream.runtime.join import ledger
from slipstream.runtime.join.caller import Refused
from slipstream.telemetry.waits import explain
from tests.ledger.rollouts import make_rollout
from tests.runtime.coordinator.here import INFLIGHT, LEASE_S, SYNC, TOKEN, Here, caller, claimed, coordinator, in_thread, remote, seat


@pytest.fixture(autouse=True)
def _long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a test waits: only a change ends them."""
    monkeypatch.setattr(ledger, "POLL_S", 60.0)
    monkeypatch.setattr(ledger, "BATCH_POLL_S", 60.0)


def rollouts_of(tickets: list, version: int = 0) -> list:
    drawn = [make_rollout(ticket, sample, [version]) for ticket in tickets for sample in ticket.samples]
    return [replace(rollout, weight_digest=f"digest-0-{version}") for rollout in drawn]


def publish(learner, version: int, lineage: int = 0) -> None:
    learner.publish(lineage, version, f"digest-{lineage}-{version}", {"version": version}, ["http://learner"])


def figure(here: Here, name: str) -> float:
    request = urllib.request.Request(f"{here.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        text = response.read().decode()
    found = re.search(rf"^slipstream_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_a_run_from_join_to_the_last_step(tmp_path: Path) -> None:
    """Two samplers and a learner; every call twice where an answer could get lost."""
    with coordinator(tmp_path) as here:
        trainer = seat(here.url, "learner", "L")
        learner, samplers = remote(trainer), [remote(seat(here.url, name=name)) for name in ("A", "B")]
        assert learner.begin(0) == 0
        for step in range(SYNC.steps):
            publish(learner, step)
            assert samplers[0].wanted_version(step) == step
            shares = [claimed(sampler, 1, step) for sampler in samplers]
            assert [len(share) for share in shares] == [1, 1]
            assert claimed(samplers[0], 1, step) == []  # all of the batch is out
            rollouts = [rollouts_of(share, step) for share in shares]
            assert samplers[0].submit(rollouts[0]) == [Receipt.ACCEPTED] * 2
            assert samplers[0].submit(rollouts[0]) == [Receipt.DUPLICATE] * 2
            waits = in_thread(lambda step=step: learner.batch(step))
            samplers[1].submit(rollouts[1])
            first = waits() or learner.batch(step)
            again = learner.batch(step)
            sent = [rollout_to_bytes(rollout) for rollout in (*rollouts[0], *rollouts[1])]
            assert [rollout_to_bytes(one) for one in first.rollouts] == [rollout_to_bytes(one) for one in again.rollouts] == sent
            for _ in range(2):
                learner.commit(step)
            learner.sync()
        learner.forget_before(1)
        assert here.ledger.state.version == SYNC.steps
        assert figure(here, 'tickets{state="trained"}') == SYNC.steps * SYNC.prompts_per_step
        assert figure(here, 'submissions{receipt="duplicate"}') == 2 * SYNC.steps
        assert figure(here, 'workers{kind="sampler"}') == 2
        assert not here.desk.finished
        for _ in range(2):
            trainer.leave(1.0)
        assert here.desk.finished
        assert here.kinds().count("left") == 1


def test_news_come_when_there_are_some(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        learner, sampler = remote(seat(here.url, "learner", "L")), remote(seat(here.url))
        learner.begin(0)
        first = sampler.watch([])
        assert first.announcements == []
        waits = in_thread(lambda: sampler.watch(first.seen))
        publish(learner, 0)
        second = waits()
        assert [one.version for one in second.announcements] == [0]
        waits = in_thread(lambda: sampler.watch(second.seen))
        claimed(sampler, 2)  # nothing is left to claim: that is news
        third = waits()
        assert third.announcements == []
        assert third.seen != second.seen


def test_a_lease_that_ended_gives_the_tickets_to_another(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        lost, other = seat(here.url, name="lost"), seat(here.url, name="other")
        tickets = claimed(remote(lost), 2)
        here.clock.advance(LEASE_S / 2)
        other.call("renew", {"last_token_s": 0, "last_load_s": 0, "phase": "wait"})
        assert claimed(remote(other), 2) == []
        here.clock.advance(LEASE_S / 2 + 1)
        here.expire()
        assert [ticket.index for ticket in claimed(remote(other), 2)] == [ticket.index for ticket in tickets]
        with pytest.raises(StaleEpoch, match="join again"):
            claimed(remote(lost), 2)
        assert remote(lost).submit(rollouts_of(tickets[:1])) == [Receipt.ACCEPTED] * 2  # the data describes itself
        lost.rejoin(1)
        assert lost.joined.epoch == 2
        assert "lease_ended" in here.kinds()


def test_a_learner_frozen_beyond_its_lease_goes_on_unless_another_came(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        one = remote(seat(here.url, "learner", "one"))
        one.begin(0)
        sampler = remote(seat(here.url, name="a sampler"))
        sampler.submit(rollouts_of(claimed(sampler, 2)))
        with pytest.raises(Exception, match="trains this run already"):
            seat(here.url, "learner", "two")
        here.clock.advance(LEASE_S + 1)
        here.expire()
        assert len(one.batch(0).rollouts) == 4  # joined anew on the way
        here.clock.advance(LEASE_S + 1)
        here.expire()
        two = remote(seat(here.url, "learner", "two"))
        two.begin(0)
        two.batch(0)
        two.commit(0)
        here.clock.advance(LEASE_S + 1)
        here.expire()
        with pytest.raises(RunFailed, match="the run went on to version 1"):
            one.batch(0)


def test_a_restarted_learner_is_served_the_same_batches_and_samplers_join_anew(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        sampler_seat = seat(here.url)
        learner, sampler = remote(seat(here.url, "learner", "L")), remote(sampler_seat)
        learner.begin(0)
        publish(learner, 0)
        tickets = claimed(sampler, 4)
        sampler.submit(rollouts_of(tickets))
        served = [learner.batch(0)]
        learner.commit(0)
        served.append(learner.batch(1))
        learner.commit(1)
        again = remote(seat(here.url, "learner", "L"))  # the same name: it takes its place at once
        assert again.begin(1) == 1  # another lineage
        with pytest.raises(StaleEpoch):
            claimed(sampler, 1, 2)
        sampler_seat.rejoin(1)
        assert sampler_seat.joined.lineage == 1
        assert sampler.watch([]).announcements == []  # what the old lineage published cannot be fetched
        publish(again, 1, lineage=1)
        assert [rollout_to_bytes(one) for one in again.batch(1).rollouts] == [rollout_to_bytes(one) for one in served[1].rollouts]
        with pytest.raises(Refused, match="lineage 0; the run is at lineage 1"):
            publish(again, 2, lineage=0)
        with pytest.raises(StaleEpoch, match="lineage 0 are of no use"):
            sampler.submit(rollouts_of(tickets))


def test_the_coordinator_is_restarted_and_nobody_else_notices_much(tmp_path: Path) -> None:
    """It comes back while calls are tried again: the pause between two tries is when it does."""
    clock = ManualClock()
    first, after = Here(tmp_path, SYNC, clock), []
    events: list[tuple[str, dict]] = []

    class Told:
        def emit(self, role: str, kind: str, **fields: object) -> None:
            events.append((kind, fields))

        def span(self, *arguments: object, **fields: object) -> None: ...

    def pause(seconds: float) -> None:
        if not after:
            after.append(Here(tmp_path, SYNC, clock, port=first.port))

    made = caller(first.url, pause=pause)
    made.events = Told()
    sampler, learner = remote(seat(first.url, made=made)), remote(seat(first.url, "learner", "L"))
    learner.begin(0)
    held = claimed(sampler, 1)
    assert made.term == 1
    first.close()
    try:
        more = claimed(sampler, 1)
        assert made.term == 2
        assert [kind for kind, _ in events] == ["coordinator_away", "coordinator_back"]
        assert sampler.submit(rollouts_of([*held, *more])) == [Receipt.ACCEPTED] * 4  # under the lease of the first term
        assert len(learner.batch(0).rollouts) == 4
    finally:
        after[0].close()


def test_a_coordinator_that_stays_away_ends_the_worker_after_its_patience(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        clock, pauses = ManualClock(), []
        made = caller(here.url, clock=clock, pause=lambda seconds: (pauses.append(seconds), clock.advance(seconds)))
        one = seat(here.url, made=made)
    with pytest.raises(RunFailed, match="has not answered claim for 6"):
        claimed(remote(one))
    assert len(pauses) > 100
    assert pauses[0] < 0.1
    assert 2.5 <= min(pauses[20:]) < max(pauses[20:]) <= 7.5
    assert len(set(pauses)) == len(pauses)  # jittered: many workers do not come back in step


def test_a_worker_that_lives_and_does_not_get_on_is_let_go(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        one = seat(here.url)
        claimed(remote(one), 1)
        told = {"tokens": 5, "last_token_s": 0.0, "last_load_s": 0.0, "phase": "generate"}
        one.call("renew", told)
        for _ in range(200):
            here.clock.advance(LEASE_S / 3)
            here.expire()
            if "lease_ended" in here.kinds():
                break
            one.call("renew", told)
        assert 1_200 <= here.clock.now_s() < 1_300


def test_answers_that_get_lost_change_nothing(tmp_path: Path) -> None:
    """Every call is made, its answer thrown away, and made again by the caller's own retry."""
    with coordinator(tmp_path) as here:

        def forgetful():
            made = caller(here.url)
            exchange, lost = made._exchange, set[int]()
            calls = 0

            def once(connection, name: str, body: bytes, deadline_s: float):
                nonlocal calls
                answer = exchange(connection, name, body, deadline_s)
                calls += 1
                if calls % 3 == 1:  # after a connection broke the next try opens another one, whose answer is lost too
                    lost.add(calls)
                    raise TimeoutError("the answer was lost")
                return answer

            made._exchange = once  # type: ignore[method-assign]
            return made

        learner, sampler = remote(seat(here.url, "learner", "L", forgetful())), remote(seat(here.url, made=forgetful()))
        learner.begin(0)
        for step in range(2):
            publish(learner, step)
            tickets = [*claimed(sampler, 1, step), *claimed(sampler, 1, step)]
            assert len({ticket.index for ticket in tickets}) == 2
            for rollout in rollouts_of(tickets, step):
                sampler.submit([rollout])
            assert len(learner.batch(step).rollouts) == 4
            learner.commit(step)
        state = here.ledger.state
        assert (state.version, state.issued) == (2, 4)
        assert state.balance()["leased"] == state.balance()["open"] == 0


def test_the_moment_tells_who_waits_for_whom(tmp_path: Path) -> None:
    """A sampler that draws, and then is not heard of; the learner waits for it."""
    with coordinator(tmp_path) as here:
        learner, sampler = seat(here.url, "learner", "l"), seat(here.url, name="s")
        remote(learner).begin(0)
        claimed(remote(sampler), 1)
        sampler.call("renew", {"last_token_s": 0, "last_load_s": 0, "phase": "generate", "phase_s": 7.5})
        here.clock.advance(LEASE_S / 2)
        learner.call("renew", {"last_token_s": 0, "last_load_s": 0, "phase": "wait", "phase_s": 20.0})
        moment = here.desk.moment()
        by_kind = {role.kind: role for role in moment.roles}
        assert (by_kind["sampler"].phase, by_kind["sampler"].phase_s, by_kind["sampler"].heard_s) == ("generate", 22.5, 15.0)
        assert moment.flow is not None
        assert (moment.flow.leased, moment.flow.claimable, moment.flow.needed) == ({by_kind["sampler"].role: 1}, 1, 2)
        found = explain(moment)
        assert [(wait.who, wait.on) for wait in found.waits] == [(by_kind["learner"].role, by_kind["sampler"].role)]
        assert found.root == f"{by_kind['sampler'].role} is in phase 'generate', for 22.5 s now"
