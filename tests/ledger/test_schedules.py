"""The ledger's promises hold in ten thousand random schedules of workers, crashes and a bad network; and the checks can fail.

The invariants themselves are in `slipstream.ledger.promises`. Each worse rule below breaks one of them, so none is checked in vain.
"""

from collections import Counter, deque
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.core.errors import TransitionError
from slipstream.core.records import Partial, Receipt
from slipstream.ledger import moves, rules, turns
from slipstream.ledger.entries import Entries, TicketEntry, TicketState
from slipstream.ledger.events import DURABLE, Batched, Event, Restarted, Returned, Trained
from slipstream.ledger.promises import Broken
from slipstream.ledger.schedules import random_policy, random_schedule
from slipstream.ledger.state import LedgerState, Policy, has_signal
from tests.ledger.journalled import JournalledSchedule

SCHEDULES_A_CHUNK = 1_000


@pytest.mark.parametrize("chunk", range(5))
@pytest.mark.parametrize("pinned", [False, True], ids=["inflight", "pinned"])
def test_every_promise_holds_in_random_schedules(pinned: bool, chunk: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(chunk * SCHEDULES_A_CHUNK, (chunk + 1) * SCHEDULES_A_CHUNK):
        schedule = random_schedule(seed, pinned=pinned)
        schedule.run()
        happened.update(name for name, times in schedule.seen.items() if times)
        happened.update(schedule.promises.told.keys())
        happened["returned"] += schedule.promises.returned > 0
        happened["crashed"] += schedule.state.term > 1
        happened["went back"] += schedule.state.lineage > 0
        happened["refilled"] += bool(schedule.promises.left_out)
        happened["let go"] += bool(schedule.promises.stale) or schedule.state.requeued > 0
    often = {
        "power cuts": 100,
        "crashed": 300,
        "went back": 15,
        "refilled": 150,
        "zombies": 50,
        "continued": 50,
        "returned": 300,
        "duplicate": 100,
    }
    assert all(happened[name] >= times for name, times in often.items()), happened
    assert all(happened[name] for name in (("stale",) if pinned else ("conflict", "let go", "refused"))), happened


@pytest.mark.parametrize("pinned", [False, True], ids=["inflight", "pinned"])
def test_every_promise_holds_with_a_real_journal(pinned: bool, tmp_path: Path) -> None:
    """The same schedules with the ledger as an actor: SQLite, snapshots, rollouts and partial tokens as bytes, leases by the clock."""
    for seed in range(100):
        schedule = JournalledSchedule(seed, random_policy(seed, pinned=pinned), tmp_path / f"{seed}.sqlite")
        schedule.run()


def test_slow_groups_of_one_version_do_not_pile_up_on_their_last_batch() -> None:
    """Three tickets claimed at version 1 must be in batches 1..3. A ticket of version 2 that is ready first may not take one of them."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=2, pinned=False, steps=5)
    entry = TicketEntry(state=TicketState.LEASED, floor=1, worker="slow")
    ready = replace(entry, state=TicketState.GROUPED)
    entries = {2: entry, 3: entry, 4: replace(ready, floor=2)}
    state = LedgerState(policy=policy, entries=Entries.of(entries), next_index=5, batched=2, version=2, forgotten=2)
    assert rules.next_batch(state) is None
    assert rules.next_batch(replace(state, policy=replace(policy, staleness="drop"))) == [4]
    assert rules.next_batch(replace(state, entries=Entries.of({**entries, 2: ready}))) == [2]


def test_a_returned_ticket_with_samples_in_keeps_its_place() -> None:
    """Its tokens keep their age, so nobody else may have its place in the batches before its deadline."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=1, pinned=False, steps=5)
    back = TicketEntry(state=TicketState.OPEN, floor=1, worker="dead")
    begun = replace(back, submitted={0: "content"}, oldest=1)
    entries = {0: replace(back, state=TicketState.BATCHED, floor=0, step=0), 1: back, 2: begun}
    state = LedgerState(policy=policy, entries=Entries.of(entries), next_index=3, batched=1, version=0, term=2)
    assert state.claimed == 2  # of the 2 that version 0 allows
    assert [grant.index for grant in rules.claimable(state, 3, loaded_version=0)] == [2]
    later = replace(state, version=1, entries=Entries.of({**entries, 0: replace(entries[0], state=TicketState.TRAINED)}))
    assert [grant.index for grant in rules.claimable(later, 3, loaded_version=1)] == [1, 2]


def test_a_zombie_gets_a_place_only_where_all_deadlines_can_still_be_met() -> None:
    """Version 1 has given the place of a ticket that came back to another; a late sample of it would make three for two batches."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=1, pinned=False, steps=5)
    entry = TicketEntry(state=TicketState.LEASED, floor=1, worker="alive")
    entries = {1: replace(entry, state=TicketState.OPEN, worker="zombie"), 2: entry, 3: entry}
    state = LedgerState(policy=policy, entries=Entries.of(entries), next_index=4, batched=1, version=1, forgotten=1)
    late = rules.Arrival(index=1, sample=0, content="late", oldest=1, newest=1, tokens=1, reward=1.0, outcome="value")
    assert rules.receipt(state, late) is Receipt.STALE
    assert rules.receipt(replace(state, entries=Entries.of({1: entries[1], 2: entry})), late) is Receipt.ACCEPTED


def test_partial_tokens_are_continued_only_where_no_deadline_is_missed() -> None:
    """A ticket came back with tokens of version 0; whoever goes on from them must be done by batch 1."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=1, pinned=False, steps=5)
    back = TicketEntry(state=TicketState.OPEN, floor=0, worker="gone")
    other = TicketEntry(state=TicketState.LEASED, floor=0, worker="slow")
    old, new = (
        Partial(ticket_index=1, sample=sample, completion_ids=ids, logprobs=np.zeros(2, np.float32), versions=np.array(versions, np.int32))
        for ids, sample, versions in ((np.zeros(2, np.int32), 0, (0, 1)), (np.zeros(2, np.int32), 1, (1, 1)))
    )

    def continued(entries: dict[int, TicketEntry], batched: int, policy: Policy) -> tuple[list[int], int]:
        """Samples that are gone on with, and the ticket's floor then."""
        state = LedgerState(policy=policy, entries=Entries.of(entries), next_index=3, batched=batched, version=1)
        play = moves.Play(state)
        (granted,) = moves.claim(play, "next", 1, 1, partials_of=lambda index: [old, new])
        return [partial.sample for partial in granted.partials], play.state.entries[1].floor

    assert continued({1: back}, 1, policy) == ([0, 1], 0)
    assert continued({1: back, 2: other}, 1, policy) == ([1], 1)  # batch 1 is the other's last
    assert continued({1: back}, 2, policy) == ([1], 1)
    assert continued({1: back, 2: other}, 1, replace(policy, staleness="drop")) == ([0, 1], 0)
    assert continued({1: back}, 2, replace(policy, staleness="drop")) == ([1], 1)
    assert continued({1: back}, 1, replace(policy, pinned=True, eta=0)) == ([1], 1)  # all of the pinned version


# Worse rules, each of which must be found out

next_batch, claimable, receipt, apply = rules.next_batch, rules.claimable, rules.receipt, moves.apply


def ready_tickets(state: LedgerState) -> list[int]:
    return sorted(index for index, entry in state.entries.items() if entry.state is TicketState.GROUPED)


def first_come_first_served(state: LedgerState) -> list[int] | None:
    """No deadlines: whatever is ready, oldest ticket first."""
    ready = ready_tickets(state)[: state.policy.prompts_per_step]
    return ready if len(ready) == state.policy.prompts_per_step and state.batched < state.policy.steps else None


def never_the_last_batch(state: LedgerState) -> list[int] | None:
    return next_batch(state) if state.batched < state.policy.steps - 1 else None


def without_admission(state: LedgerState, tickets: int, loaded_version: int, of: rules.EnvironmentOf) -> list[rules.Grant]:
    total = state.policy.steps * state.policy.prompts_per_step
    indices = list(chain(state.open_indices(), range(state.next_index, total)))[:tickets]
    return [rules.Grant(index=index, version=loaded_version) for index in indices if loaded_version >= state.version]


def pinned_to_whatever_is_loaded(state: LedgerState, tickets: int, loaded_version: int, of: rules.EnvironmentOf) -> list[rules.Grant]:
    return [replace(grant, version=loaded_version) for grant in claimable(state, tickets, loaded_version, of)] or without_admission(
        state, tickets, loaded_version, of
    )


def leases_outlive_their_workers(event: Event, state: LedgerState) -> LedgerState:
    before = {index: entry.state for index, entry in state.entries.items()}  # the state may be a draft, which changes
    after = apply(event, state)
    if not isinstance(event, (Restarted, Returned)):
        return after
    back = {index: replace(entry, state=before[index]) for index, entry in after.entries.items() if entry.step is None}
    return replace(after, entries=after.entries.updated(back))


def batches_are_decided_anew(event: Event, state: LedgerState) -> LedgerState:
    after = apply(event, state)
    if not isinstance(event, Restarted):
        return after
    free = {
        index: replace(entry, state=TicketState.GROUPED, step=None)
        for index, entry in after.entries.items()
        if entry.step is not None and entry.step >= event.version and entry.state is not TicketState.DROPPED
    }
    return replace(after, entries=Entries.of({**after.entries, **free}), batched=event.version)


def drops_as_they_come(state: LedgerState, index: int) -> bool:
    """Also in the pinned modes, where the first to come in is not the same in every run."""
    entry = state.entries[index]
    used = len(state.left_out(state.batched))
    mine = not state.policy.pinned or state.policy.step_of(index) == state.batched
    return mine and entry.state is TicketState.GROUPED and not has_signal(entry) and used < state.policy.refill


def without_waiting_for_further_prompts(state: LedgerState) -> list[int] | None:
    own, _ = state.policy.block(state.batched)
    return list(own) if set(own) <= set(ready_tickets(state)) else None


def filled_with_the_last(state: LedgerState) -> list[int] | None:
    """The right groups with signal, the wrong ones without."""
    if next_batch(state) is None:
        return None
    asked = sorted(rules.asked_for(state, state.batched), key=lambda index: (not has_signal(state.entries[index]), -index))
    return sorted(asked[: state.policy.prompts_per_step])


def all_further_prompts_at_once(state: LedgerState, tickets: int, loaded_version: int, of: rules.EnvironmentOf) -> list[rules.Grant]:
    grants = claimable(state, tickets, loaded_version, of)
    _, further = state.policy.block(state.batched)
    new = [index for index in further if not state.knows(index) and index not in {grant.index for grant in grants}]
    version = max(0, state.batched - state.policy.eta)
    return [*grants, *(rules.Grant(index=index, version=version) for index in new if version == loaded_version)]


def no_place_for_further_prompts(state: LedgerState, tickets: int, loaded_version: int, of: rules.EnvironmentOf) -> list[rules.Grant]:
    return [grant for grant in claimable(state, tickets, loaded_version, of) if grant.index < state.policy.planned]


def forgets_to_count_trained(event: Event, state: LedgerState) -> LedgerState:
    after = apply(event, state)
    return replace(after, forgotten=0)


def forgets_what_was_dropped(event: Event, state: LedgerState) -> LedgerState:
    return replace(apply(event, state), samples_dropped={})


def is_grouped(state: LedgerState, index: int) -> bool:
    return state.entries[index].state is TicketState.GROUPED


def blind_to_caps(state: LedgerState, tickets: int, loaded_version: int, of: rules.EnvironmentOf) -> list[rules.Grant]:
    return claimable(replace(state, policy=replace(state.policy, caps={})), tickets, loaded_version, of)


def takes_all(state: LedgerState, arrival: rules.Arrival) -> Receipt:
    return Receipt.ACCEPTED


def takes_only_from_the_living(state: LedgerState, arrival: rules.Arrival) -> Receipt:
    said, entry = receipt(state, arrival), state.entries.get(arrival.index)
    return Receipt.CLOSED if said is Receipt.ACCEPTED and entry.worker == "sampler-0" else said


def takes_any_version(state: LedgerState, arrival: rules.Arrival) -> Receipt:
    said = receipt(state, arrival)
    return Receipt.ACCEPTED if said is Receipt.STALE else said


def never(*_: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("place", "name", "worse", "pinned", "message"),
    [
        (rules, "next_batch", first_come_first_served, False, "age"),
        (rules, "claimable", without_admission, False, "age|deadlock"),
        (rules, "next_batch", never_the_last_batch, False, "deadlock"),
        (rules, "next_batch", never_the_last_batch, True, "deadlock"),
        (rules, "next_batch", first_come_first_served, True, "pinned batch|came to ticket"),
        (rules, "claimable", pinned_to_whatever_is_loaded, True, "is in pinned batch|would be trained at age|as stale|are leased"),
        (moves, "apply", leases_outlive_their_workers, False, "deadlock"),
        (moves, "apply", leases_outlive_their_workers, True, "deadlock"),
        (moves, "apply", batches_are_decided_anew, False, "fixed again|age|samples: "),
        (moves, "apply", forgets_to_count_trained, False, "do not sum"),
        (moves, "apply", forgets_what_was_dropped, False, "samples: "),
        (rules, "gives_way", drops_as_they_come, True, "pinned batch|are left"),
        (rules, "next_batch", without_waiting_for_further_prompts, True, "pinned batch|came to ticket|rewards differ"),
        (rules, "next_batch", filled_with_the_last, True, "pinned batch"),
        (rules, "surplus", lambda state, members: [], True, "pinned batch"),
        (rules, "claimable", all_further_prompts_at_once, True, "not every prompt|pinned batch|are leased"),
        (rules, "claimable", no_place_for_further_prompts, True, "deadlock"),
        (rules, "claimable", no_place_for_further_prompts, False, "deadlock"),
        (rules, "claimable", blind_to_caps, False, "are leased"),
        (rules, "claimable", blind_to_caps, True, "are leased"),
        (rules, "gives_way", never, False, "has refills left"),
        (rules, "gives_way", is_grouped, False, "rewards differ|are left"),
        (rules, "let_go", never, False, "too old|age"),
        (rules, "let_go", is_grouped, False, "may train on it|staleness is not"),
        (rules, "receipt", takes_all, False, "a second time|has ended before|came to ticket"),
        (rules, "receipt", takes_any_version, False, "below its floor|deadlock"),
        (rules, "receipt", takes_any_version, True, "is in pinned batch|below its floor|two contents"),
        (rules, "receipt", takes_only_from_the_living, False, "is new, and turned away"),
        (moves, "EPOCHS_A_TERM", 0, False, "two workers are sampler-"),
        (turns, "DURABLE", tuple(kind for kind in DURABLE if kind is not Batched), False, "a power cut undid a batch"),
        (turns, "DURABLE", tuple(kind for kind in DURABLE if kind is not Trained), True, "a power cut undid a batch"),
    ],
)
def test_a_worse_rule_is_found_out(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, worse: Any, pinned: bool, message: str) -> None:
    monkeypatch.setattr(place, name, worse)
    schedules = (random_schedule(seed, pinned=pinned) for seed in range(1_000))
    with pytest.raises((Broken, TransitionError), match=message):
        deque((schedule.run() for schedule in schedules), maxlen=0)
