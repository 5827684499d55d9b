"""Decisions over a ledger state: what may be claimed now, what is taken, and which tickets make the next batch. Pure.

The age bound holds without throwing work away, by two rules together. *Admission*: a claim at version v is allowed only while
claimed tickets <= (v + 1 + eta) P, so the tickets whose floor is f or older fit into batches 0 .. f + eta. *Earliest deadline
first*: a ticket with floor f must be in batch f + eta at the latest; batches take the tightest floors first, and a batch
waits as long as those left over might not all fit into the batches before their deadlines. A ticket that came back with
samples in keeps its deadline, and therefore its place. Whoever would have a place without a claim (a worker whose lease has ended,
or partial tokens of another's) gets it only where all deadlines can still be met (`fits`).

*Staleness*: with `drop` or `requeue` batches wait for nobody; a group that no batch to come could train on is let go.

*Refill*: with `Policy.refill` = R a batch may ask for up to R further prompts in place of complete groups without signal. In flight
such a group is dropped when its last sample comes in, as long as the batch to be fixed next has refills left: it gives up its place, so
that admission allows another claim. Nothing else changes: a dropped group only loosens the deadlines of the others. In the pinned
modes the batch must not depend on the order in which groups come in: the first R groups without signal each add one ticket to those
that the batch asks for, whichever they are, and nothing is dropped before all are in. The batch then is the P first with signal;
where there are fewer, the first without fill it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from slipstream.core.records import Receipt
from slipstream.ledger.entries import SampleIndex, TicketEntry, TicketIndex, TicketState, holds_place
from slipstream.ledger.state import LedgerState, has_signal, too_old

EnvironmentOf = Callable[[TicketIndex], str]

DATA_DIGITS = 16  # of a content hash: what the sample says; the rest is of all its bytes, who drew it and when included

_COMPLETE = (TicketState.GROUPED, TicketState.DROPPED)  # of a batch that is not fixed
_TAKING = (TicketState.OPEN, TicketState.LEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim that would be allowed."""

    index: TicketIndex
    version: int  # pinned version, or the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What the ledger must know of a rollout that is handed in."""

    index: TicketIndex
    sample: SampleIndex
    content: str  # hash: of the data (`DATA_DIGITS`), then of all bytes
    oldest: int  # versions among its tokens
    newest: int
    tokens: int  # of its completion
    reward: float | None
    outcome: str  # reason of dropping it where there is no reward


def pinned_version(state: LedgerState, index: TicketIndex) -> int:
    """The version that samples a ticket in the pinned modes."""
    return max(0, state.policy.step_of(index) - state.policy.eta)


def one_environment(index: TicketIndex) -> str:
    """Where the run has one environment."""
    return ""


def claimable(state: LedgerState, tickets: int, loaded_version: int, environment_of: EnvironmentOf = one_environment) -> list[Grant]:
    """Up to `tickets` grants for a sampler that has `loaded_version` loaded; earlier batches and returned tickets first."""
    if not state.policy.pinned and loaded_version < state.version:
        return []
    candidates = list(islice(admitted(state, environment_of), max(0, tickets)))
    if not state.policy.pinned:
        return [Grant(index=index, version=loaded_version) for index in candidates]
    grants = [Grant(index=index, version=pinned_version(state, index)) for index in candidates]
    return [grant for grant in grants if grant.version == loaded_version]


def wanted_version(state: LedgerState, newest: int, environment_of: EnvironmentOf = one_environment) -> int | None:
    """The version a sampler should have loaded for its next claim; None when nothing can be claimed now."""
    first = next(admitted(state, environment_of), None)
    if first is None:
        return None
    version = pinned_version(state, first) if state.policy.pinned else newest
    return version if version <= newest else None


def admitted(state: LedgerState, environment_of: EnvironmentOf) -> Iterator[TicketIndex]:
    """The tickets that may be claimed now, in the order in which they would be."""
    has_room = _caps(state, environment_of)
    if state.policy.pinned:
        yield from filter(has_room, _pinned_order(state))
        return
    room = (state.version + 1 + state.policy.eta) * state.policy.prompts_per_step - state.claimed
    for index in state.open_indices():
        places = 0 if holds_place(state.entries[index]) else 1
        if room >= places and has_room(index):
            room -= places
            yield index
    for index in _new(state):
        if room <= 0:
            return
        if has_room(index):
            room -= 1
            yield index


def _pinned_order(state: LedgerState) -> Iterator[TicketIndex]:
    """What the batches that are due ask for and nobody works on."""
    for step in range(state.batched, min(state.version + state.policy.eta + 1, state.policy.steps)):
        for index in asked_for(state, step):
            entry = state.entries.get(index)
            if entry is None or entry.state is TicketState.OPEN:
                yield index


def _new(state: LedgerState) -> Iterator[TicketIndex]:
    """Tickets in flight that nobody has claimed: passed over before, then in order; with caps at most so far ahead as admission allows."""
    policy = state.policy
    yield from sorted(state.passed)
    end = policy.planned + state.dropped
    ahead = (1 + policy.eta) * policy.prompts_per_step - len(state.passed) if policy.caps else end
    yield from range(state.next_index, min(end, state.next_index + ahead))


def _caps(state: LedgerState, environment_of: EnvironmentOf) -> Callable[[TicketIndex], bool]:
    """Says of one ticket after the other whether its environment has room for it; a yes takes the room."""
    caps = state.policy.caps
    if not caps:
        return lambda index: True
    used = Counter(environment_of(index) for index, entry in state.entries.live() if entry.state is TicketState.LEASED)

    def has_room(index: TicketIndex) -> bool:
        environment = environment_of(index)
        if environment in caps and used[environment] >= caps[environment]:
            return False
        used[environment] += 1
        return True

    return has_room


def asked_for(state: LedgerState, step: int) -> Sequence[TicketIndex]:
    """The tickets of a pinned batch that is not fixed yet: its own, and one for each of the first groups found without signal."""
    own, further = state.policy.block(step)
    silent = sum(is_silent(state, index) for index in (*own, *further)) if further else 0
    return [*own, *further[:silent]] if silent else own


def is_silent(state: LedgerState, index: TicketIndex) -> bool:
    """All of the ticket's samples are in, and it has no signal."""
    entry = state.entries.get(index)
    return entry is not None and entry.state in _COMPLETE and not has_signal(entry)


def receipt(state: LedgerState, arrival: Arrival) -> Receipt:
    """What is to become of a rollout of a ticket that is known. Who hands it in does not matter: the data describes itself."""
    entry: TicketEntry | None = state.entries.get(arrival.index)
    if entry is None:
        return Receipt.CLOSED  # forgotten
    first = entry.submitted.get(arrival.sample)
    if first is not None:
        return Receipt.DUPLICATE if first[:DATA_DIGITS] == arrival.content[:DATA_DIGITS] else Receipt.CONFLICT
    if arrival.sample in entry.dropped:
        return Receipt.DUPLICATE if arrival.reward is None else Receipt.CONFLICT
    if entry.state not in _TAKING:
        return Receipt.CLOSED
    if state.policy.pinned:
        allowed = arrival.oldest == arrival.newest == pinned_version(state, arrival.index)
    else:
        allowed = arrival.oldest >= entry.floor and (holds_place(entry) or fits(state, arrival.index, entry.floor))
    return Receipt.ACCEPTED if allowed else Receipt.STALE


def fits(state: LedgerState, index: TicketIndex, floor: int) -> bool:
    """With a place for this ticket at this floor everyone in flight can still make their deadlines, or batches wait for nobody."""
    policy = state.policy
    if not policy.waits:
        return floor >= state.batched - policy.eta
    others = (entry.floor for other, entry in state.entries.live() if other != index and holds_place(entry))
    return all(made + policy.eta >= state.batched + place // policy.prompts_per_step for place, made in enumerate(sorted((floor, *others))))


def next_batch(state: LedgerState) -> list[TicketIndex] | None:
    """The members of batch `state.batched` if it can be fixed now, else None."""
    policy, step = state.policy, state.batched
    if step >= policy.steps:
        return None
    if not policy.pinned:
        return _earliest_deadlines(state, step) if state.entries.count(TicketState.GROUPED) >= policy.prompts_per_step else None
    asked = asked_for(state, step)
    entries = [state.entries.get(index) for index in asked]
    if not all(entry is not None and entry.state in _COMPLETE for entry in entries):
        return None
    by_use = sorted(asked, key=lambda index: is_silent(state, index))  # stable: by index within each kind
    return sorted(by_use[: policy.prompts_per_step])


def gives_way(state: LedgerState, index: TicketIndex) -> bool:
    """In flight, of a ticket whose last sample has just come in: it is dropped for a further prompt."""
    return not state.policy.pinned and is_silent(state, index) and len(state.left_out(state.batched)) < state.policy.refill


def let_go(state: LedgerState, index: TicketIndex) -> bool:
    """Nobody works on the ticket, batches wait for nobody, and it has grown too old for those to come."""
    entry = state.entries[index]
    return not state.policy.waits and entry.state in (TicketState.OPEN, TicketState.GROUPED) and too_old(state, entry)


def all_let_go(state: LedgerState) -> list[TicketIndex]:
    """Every ticket that is to be let go, in order."""
    return [] if state.policy.waits else sorted(index for index, _ in state.entries.live() if let_go(state, index))


def surplus(state: LedgerState, members: Sequence[TicketIndex]) -> list[TicketIndex]:
    """The tickets that are dropped as batch `state.batched` is fixed with these members."""
    if not state.policy.pinned:
        return []
    taken = {*members, *state.left_out(state.batched)}
    return [index for index in asked_for(state, state.batched) if index not in taken]


def _earliest_deadlines(state: LedgerState, step: int) -> list[TicketIndex] | None:
    """The complete tickets with the tightest floors, if all the others can still make their own deadlines afterwards."""
    policy = state.policy
    live = sorted((entry.floor, index) for index, entry in state.entries.live() if holds_place(entry))
    chosen = [index for _, index in live if state.entries[index].state is TicketState.GROUPED][: policy.prompts_per_step]
    if policy.waits:
        taken = set(chosen)
        others = [floor for floor, index in live if index not in taken]
        if not all(floor + policy.eta > step + place // policy.prompts_per_step for place, floor in enumerate(others)):
            return None
    return sorted(chosen)
