"""Partial tokens of running samples, for whoever may have to go on with them. Kept beside the events; the `Ledger` serialises access."""

from collections.abc import Iterable, Sequence

from slipstream.core.records import Partial
from slipstream.ledger.entries import TicketIndex, TicketState
from slipstream.ledger.journal import Journal
from slipstream.ledger.partials import partial_from_bytes, partial_to_bytes
from slipstream.ledger.state import LedgerState


class Running:
    """Knows which tickets have any, so that claims need not ask the disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tickets = journal.tickets_with_partials()

    def save(self, state: LedgerState, worker: str, partials: Sequence[Partial]) -> None:
        """Those of tickets that are no longer the worker's are left out."""
        kept = [partial for partial in partials if _runs(state, worker, partial)]
        if kept:
            self._journal.save_partials([(one.ticket_index, one.sample, partial_to_bytes(one)) for one in kept])
            self._tickets.update(one.ticket_index for one in kept)

    def of(self, state: LedgerState, index: TicketIndex) -> list[Partial]:
        """Of the samples of a ticket that are still to draw."""
        if index not in self._tickets:
            return []
        left = set(state.left(index))
        found = [partial_from_bytes(content) for content in self._journal.partials(index)]
        return [one for one in found if one and one.ticket_index == index and one.sample in left]

    def drop_done(self, state: LedgerState) -> None:
        """Of tickets that nobody will work on any more."""
        working = (TicketState.OPEN, TicketState.LEASED)
        entries = state.entries
        self._drop([index for index in self._tickets if index not in entries or entries[index].state not in working])

    def drop_all(self) -> None:
        """The run goes on from older weights."""
        self._drop(list(self._tickets))

    def gone(self, tickets: Iterable[TicketIndex]) -> None:
        """The journal has dropped these with their tickets."""
        self._tickets.difference_update(tickets)

    def _drop(self, tickets: Sequence[TicketIndex]) -> None:
        if tickets:
            self._journal.drop_partials(tickets)
            self.gone(tickets)


def _runs(state: LedgerState, worker: str, partial: Partial) -> bool:
    """The worker's lease is on this sample, whose tokens are none too old for its ticket."""
    entry = state.entries.get(partial.ticket_index)
    if entry is None or entry.state is not TicketState.LEASED or entry.worker != worker:
        return False
    ended = partial.sample in entry.submitted or partial.sample in entry.dropped
    return not ended and (state.policy.pinned or int(partial.versions.min()) >= entry.floor)
