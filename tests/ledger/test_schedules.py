"""The ledger's promises hold in ten thousand random schedules with crashes, power cuts and duplicates; and the checks can fail.

The invariants themselves are in `schedules.py`. Each worse rule below breaks one of them, so none is checked in vain.
"""

from collections import deque
from dataclasses import replace
from itertools import chain

import pytest

from slipstream.core.errors import TransitionError
from slipstream.ledger import rules
from slipstream.ledger.events import Event, Restarted
from slipstream.ledger.state import LedgerState, Policy, TicketState
from slipstream.ledger.transition import apply
from tests.ledger.schedules import Broken, Rules, Schedule, random_schedule

SCHEDULES_A_CHUNK = 500


@pytest.mark.parametrize("chunk", range(10))
@pytest.mark.parametrize("pinned", [False, True], ids=["inflight", "pinned"])
def test_every_promise_holds_in_random_schedules(pinned: bool, chunk: int) -> None:
    crashed = again = refilled = used_up = 0
    for seed in range(chunk * SCHEDULES_A_CHUNK, (chunk + 1) * SCHEDULES_A_CHUNK):
        schedule = random_schedule(seed, pinned=pinned)
        schedule.run()
        crashed += schedule.state.term > 1
        again += schedule.state.lineage > 0
        refilled += len(schedule.left_out)
        used_up += sum(len(left_out) == schedule.policy.refill for left_out in schedule.left_out.values())
    assert crashed > SCHEDULES_A_CHUNK / 5  # the schedules do crash,
    assert again > SCHEDULES_A_CHUNK / 50  # and do go back to older versions,
    assert refilled > used_up > SCHEDULES_A_CHUNK / 5  # and many batches ask for further prompts, some for as many as they may


def test_slow_groups_of_one_version_do_not_pile_up_on_their_last_batch() -> None:
    """Three tickets claimed at version 1 must be in batches 1..3. A ticket of version 2 that is ready first may not take one of them."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=2, pinned=False, steps=5)
    schedule = Schedule(0, policy, samplers=1, crashes=0)
    entry = rules.TicketEntry(state=TicketState.LEASED, floor=1, worker="slow")
    state = LedgerState(
        policy=policy,
        entries={2: entry, 3: entry, 4: replace(entry, state=TicketState.GROUPED, floor=2)},
        next_index=5,
        batched=2,
        version=2,
        forgotten=2,
    )
    assert schedule.rules.next_batch(state) is None
    ready = replace(state, entries={**state.entries, 2: replace(entry, state=TicketState.GROUPED)})
    assert schedule.rules.next_batch(ready) == [2]


def test_a_returned_ticket_with_samples_in_keeps_its_place() -> None:
    """Its tokens keep their age, so nobody else may have its place in the batches before its deadline."""
    policy = Policy(prompts_per_step=1, group_size=2, eta=1, pinned=False, steps=5)
    back = rules.TicketEntry(state=TicketState.OPEN, floor=1, worker="dead")
    begun = replace(back, submitted={0: "content"}, oldest=1)
    state = LedgerState(
        policy=policy,
        entries={0: replace(back, state=TicketState.BATCHED, floor=0, step=0), 1: back, 2: begun},
        next_index=3,
        batched=1,
        version=0,
        term=2,
    )
    assert state.claimed == 2  # of the 2 that version 0 allows
    assert [grant.index for grant in rules.claimable(state, 3, loaded_version=0)] == [2]
    later = replace(state, version=1, entries={**state.entries, 0: replace(state.entries[0], state=TicketState.TRAINED)})
    assert [grant.index for grant in rules.claimable(later, 3, loaded_version=1)] == [1, 2]


# Worse rules, each of which must be found out


def ready_tickets(state: LedgerState) -> list[int]:
    return sorted(index for index, entry in state.entries.items() if entry.state is TicketState.GROUPED)


def first_come_first_served(state: LedgerState) -> list[int] | None:
    """No deadlines: whatever is ready, oldest ticket first."""
    ready = ready_tickets(state)[: state.policy.prompts_per_step]
    return ready if len(ready) == state.policy.prompts_per_step and state.batched < state.policy.steps else None


def waits_only_for_what_is_due_now(state: LedgerState) -> list[int] | None:
    """Tightest floors first, but blind to deadlines later than this batch."""
    chosen = sorted(ready_tickets(state), key=lambda index: (state.entries[index].floor, index))[: state.policy.prompts_per_step]
    unfinished = [entry for entry in state.entries.values() if entry.step is None and entry.state is not TicketState.GROUPED]
    due = any(rules.holds_place(entry) and entry.floor + state.policy.eta <= state.batched for entry in unfinished)
    return sorted(chosen) if len(chosen) == state.policy.prompts_per_step and not due else None


def never_the_last_batch(state: LedgerState) -> list[int] | None:
    return rules.next_batch(state) if state.batched < state.policy.steps - 1 else None


def without_admission(state: LedgerState, tickets: int, loaded_version: int) -> list[rules.Grant]:
    total = state.policy.steps * state.policy.prompts_per_step
    indices = list(chain(state.open_indices(), range(state.next_index, total)))[:tickets]
    return [rules.Grant(index=index, version=loaded_version) for index in indices if loaded_version >= state.version]


def pinned_to_whatever_is_loaded(state: LedgerState, tickets: int, loaded_version: int) -> list[rules.Grant]:
    return [replace(grant, version=loaded_version) for grant in rules.claimable(state, tickets, loaded_version)] or without_admission(
        state, tickets, loaded_version
    )


def leases_outlive_a_crash(event: Event, state: LedgerState) -> LedgerState:
    after = apply(event, state)
    if not isinstance(event, Restarted):
        return after
    back = {index: replace(entry, state=state.entries[index].state) for index, entry in after.entries.items() if entry.step is None}
    return replace(after, entries={**after.entries, **back})


def batches_are_decided_anew(event: Event, state: LedgerState) -> LedgerState:
    after = apply(event, state)
    if not isinstance(event, Restarted):
        return after
    free = {
        index: replace(entry, state=TicketState.GROUPED, step=None)
        for index, entry in after.entries.items()
        if entry.step is not None and entry.step >= event.version and entry.state is not TicketState.DROPPED
    }
    return replace(after, entries={**after.entries, **free}, batched=event.version)


def drops_as_they_come(state: LedgerState, index: int) -> bool:
    """Also in the pinned modes, where the first to come in is not the same in every run."""
    entry = state.entries[index]
    used = len(state.left_out(state.batched))
    mine = not state.policy.pinned or state.policy.step_of(index) == state.batched
    return mine and entry.state is TicketState.GROUPED and not rules.has_signal(entry) and used < state.policy.refill


def without_waiting_for_further_prompts(state: LedgerState) -> list[int] | None:
    own, _ = state.policy.block(state.batched)
    return list(own) if set(own) <= set(ready_tickets(state)) else None


def filled_with_the_last(state: LedgerState) -> list[int] | None:
    """The right groups with signal, the wrong ones without."""
    if rules.next_batch(state) is None:
        return None
    asked = sorted(rules.asked_for(state, state.batched), key=lambda index: (not rules.has_signal(state.entries[index]), -index))
    return sorted(asked[: state.policy.prompts_per_step])


def all_further_prompts_at_once(state: LedgerState, tickets: int, loaded_version: int) -> list[rules.Grant]:
    grants = rules.claimable(state, tickets, loaded_version)
    _, further = state.policy.block(state.batched)
    new = [index for index in further if not state.knows(index) and index not in {grant.index for grant in grants}]
    version = max(0, state.batched - state.policy.eta)
    return [*grants, *(rules.Grant(index=index, version=version) for index in new if version == loaded_version)]


def no_place_for_further_prompts(state: LedgerState, tickets: int, loaded_version: int) -> list[rules.Grant]:
    return [grant for grant in rules.claimable(state, tickets, loaded_version) if grant.index < state.policy.planned]


def forgets_to_count_trained(event: Event, state: LedgerState) -> LedgerState:
    after = apply(event, state)
    return replace(after, forgotten=0)


@pytest.mark.parametrize(
    ("worse", "pinned", "message"),
    [
        (Rules(next_batch=first_come_first_served), False, "age"),
        (Rules(next_batch=waits_only_for_what_is_due_now), False, "age"),
        (Rules(claimable=without_admission), False, "age|deadlock"),
        (Rules(next_batch=never_the_last_batch), False, "deadlock"),
        (Rules(next_batch=never_the_last_batch), True, "deadlock"),
        (Rules(next_batch=first_come_first_served), True, "pinned batch|came to ticket"),
        (Rules(claimable=pinned_to_whatever_is_loaded), True, "is in pinned batch|would be trained at age"),
        (Rules(apply=leases_outlive_a_crash), False, "deadlock"),
        (Rules(apply=leases_outlive_a_crash), True, "deadlock"),
        (Rules(apply=batches_are_decided_anew), False, "fixed again|age"),
        (Rules(apply=forgets_to_count_trained), False, "do not sum"),
        (Rules(gives_way=drops_as_they_come), True, "pinned batch|are left"),
        (Rules(next_batch=without_waiting_for_further_prompts), True, "pinned batch|came to ticket|rewards differ"),
        (Rules(next_batch=filled_with_the_last), True, "pinned batch"),
        (Rules(surplus=lambda state, members: []), True, "pinned batch"),
        (Rules(claimable=all_further_prompts_at_once), True, "not every prompt|pinned batch"),
        (Rules(claimable=no_place_for_further_prompts), True, "deadlock"),
        (Rules(claimable=no_place_for_further_prompts), False, "deadlock"),
        (Rules(gives_way=lambda state, index: False), False, "has refills left"),
        (Rules(gives_way=lambda state, index: state.entries[index].state is TicketState.GROUPED), False, "rewards differ|are left"),
        (Rules(turned_away=lambda state, index, sample: False), False, "a second time"),
        (Rules(turned_away=lambda state, index, sample: True), False, "is new, and turned away"),
    ],
)
def test_a_worse_rule_is_found_out(worse: Rules, pinned: bool, message: str) -> None:
    schedules = (random_schedule(seed, pinned=pinned, decisions=worse) for seed in range(1_000))
    with pytest.raises((Broken, TransitionError), match=message):
        deque((schedule.run() for schedule in schedules), maxlen=0)
