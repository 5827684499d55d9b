"""What each message does to a ledger: its events, in order, and the state after them. Pure; the `Ledger` journals them, tests play them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.records import Partial, Receipt
from slipstream.ledger import rules
from slipstream.ledger.entries import TicketIndex, TicketState
from slipstream.ledger.events import (
    Batched,
    Claimed,
    Event,
    GroupDropped,
    Joined,
    Left,
    Requeued,
    Restarted,
    Returned,
    SampleDropped,
    Submitted,
    TurnedAway,
)
from slipstream.ledger.state import STALE, ZERO_VARIANCE, LedgerState
from slipstream.ledger.transition import apply

EPOCHS_A_TERM = 1_000  # a join that a power cut undid had a lower epoch than any after it, so names can be given again


class Play:
    """Events played one after the other from a state."""

    def __init__(self, state: LedgerState) -> None:
        self.state = state  # a draft, from the first event on
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Raises TransitionError when the event is not allowed; nothing can be played after that."""
        self.state = apply(event, self.state if self.events else self.state.draft())
        self.events.append(event)

    def end(self) -> LedgerState:
        """The state after all events, for good."""
        return self.state.sealed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A ticket given to a worker, with what others had drawn of it already."""

    grant: rules.Grant
    partials: tuple[Partial, ...] = ()


def join(play: Play, kind: str, incarnation: str, worker: str | None, capabilities: Mapping[str, str]) -> str:
    """A worker comes; `worker`: its name where it came before. What it had is open again: a new start has none of it."""
    if worker is None:
        worker = f"{kind}-{play.state.kinds.get(kind, 0)}"
    before = play.state.workers.get(worker)
    give_back(play, worker, play.state.entries.held_by(worker) if before else (), "restarted")
    epoch = max(before.epoch if before else 0, (play.state.term - 1) * EPOCHS_A_TERM) + 1
    play.add(Joined(worker=worker, kind=kind, incarnation=incarnation, epoch=epoch, capabilities=capabilities))
    return worker


def depart(play: Play, worker: str, reason: str) -> None:
    """A worker left, or its lease expired."""
    give_back(play, worker, play.state.entries.held_by(worker), reason)
    play.add(Left(worker=worker, epoch=play.state.workers[worker].epoch, reason=reason))


def give_back(play: Play, worker: str, tickets: Sequence[TicketIndex], reason: str) -> None:
    """Tickets of a worker are open again; what has grown too old meanwhile is let go."""
    if tickets:
        play.add(Returned(worker=worker, tickets=tuple(tickets), reason=reason))
        for index in tickets:
            _let_go(play, index)


def claim(
    play: Play,
    worker: str,
    tickets: int,
    loaded_version: int,
    *,
    environment_of: rules.EnvironmentOf = rules.one_environment,
    partials_of: Callable[[TicketIndex], Sequence[Partial]] = lambda index: (),
    holding: Collection[TicketIndex] | None = None,
) -> list[Granted]:
    """Tickets for a worker. `holding`: all that it knows it has; others that are leased to it were lost on the way, and come back first."""
    if holding is not None:
        give_back(play, worker, [index for index in play.state.entries.held_by(worker) if index not in holding], "lost")
    granted: list[Granted] = []
    for grant in rules.claimable(play.state, tickets, loaded_version, environment_of):
        partials = _continued(play.state, grant, partials_of(grant.index))
        floor = min([grant.version, *(int(partial.versions.min()) for partial in partials)])
        play.add(Claimed(index=grant.index, worker=worker, floor=floor))
        granted.append(Granted(grant=grant, partials=tuple(partials)))
    return granted


def _continued(state: LedgerState, grant: rules.Grant, partials: Sequence[Partial]) -> Sequence[Partial]:
    """The partial tokens that the new holder may go on from: of the pinned version, or not so old that a deadline could be missed."""
    if not partials or state.policy.pinned:
        return [one for one in partials if one.versions.min() == one.versions.max() == grant.version]
    oldest = state.entries[grant.index].oldest
    floor = min([int(one.versions.min()) for one in partials] + ([] if oldest is None else [oldest]))
    if rules.fits(state, grant.index, floor):
        return partials
    return [one for one in partials if one.versions.min() >= grant.version]


def receive(play: Play, arrival: rules.Arrival) -> Receipt:
    """A rollout comes in. First write wins; what is not taken is counted."""
    index, sample = arrival.index, arrival.sample
    said = rules.receipt(play.state, arrival)
    if said is not Receipt.ACCEPTED:
        play.add(TurnedAway(index=index, sample=sample, receipt=said.value))
    elif arrival.reward is None:
        play.add(SampleDropped(index=index, sample=sample, reason=arrival.outcome))
    else:
        play.add(
            Submitted(
                index=index, sample=sample, content=arrival.content, oldest=arrival.oldest, reward=arrival.reward, tokens=arrival.tokens
            )
        )
    if said is Receipt.ACCEPTED and play.state.entries[index].state is not TicketState.LEASED:
        if rules.gives_way(play.state, index):
            play.add(GroupDropped(index=index, step=play.state.batched, reason=ZERO_VARIANCE))
        else:
            _let_go(play, index)
    return said


def fix(play: Play) -> bool:
    """The next batch is fixed, if it can be."""
    step, members = play.state.batched, rules.next_batch(play.state)
    if members is None:
        return False
    for index in rules.surplus(play.state, members):
        play.add(GroupDropped(index=index, step=step, reason=ZERO_VARIANCE))
    play.add(Batched(step=step, members=tuple(members)))
    for index in rules.all_let_go(play.state):
        _let_go(play, index)
    return True


def restart(play: Play, version: int) -> None:
    """The learner goes on from its checkpoint of `version`."""
    play.add(Restarted(version=version))
    for index in rules.all_let_go(play.state):
        _let_go(play, index)


def _let_go(play: Play, index: TicketIndex) -> None:
    """A group that no batch to come could train on makes room for another prompt, or is drawn anew."""
    if rules.let_go(play.state, index):
        requeues = play.state.policy.staleness == "requeue"
        play.add(Requeued(index=index) if requeues else GroupDropped(index=index, step=play.state.batched, reason=STALE))
