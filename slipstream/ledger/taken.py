"""The rollouts of one message that the ledger takes, on their way to the journal: for a batch, or set aside for the record."""

from collections.abc import Sequence

from slipstream.core.records import Rollout
from slipstream.ledger.entries import TicketIndex
from slipstream.ledger.events import Event, Requeued, SampleDropped, Submitted
from slipstream.ledger.journal import Contents
from slipstream.ledger.recent import Recent


class Taken:
    """Filled rollout by rollout."""

    def __init__(self) -> None:
        self._of: dict[TicketIndex, list[tuple[Rollout, bytes]]] = {}
        self._aside: list[bytes] = []

    def note(self, events: Sequence[Event], rollout: Rollout, content: bytes) -> None:
        """`events`: what the ledger's move for this rollout was."""
        index = rollout.ticket_index
        for event in events:
            if isinstance(event, Submitted):
                self._of.setdefault(index, []).append((rollout, content))
            elif isinstance(event, SampleDropped):
                self._aside.append(content)
            elif isinstance(event, Requeued):
                self._aside += (content for _, content in self._of.pop(index, ()))

    def contents(self, anew: Sequence[TicketIndex], step: int) -> Contents:
        """`anew`: tickets that are drawn again; `step`: the batch that is to be fixed next."""
        taken = [(rollout.ticket_index, rollout.sample_index, content) for pairs in self._of.values() for rollout, content in pairs]
        return Contents(anew=anew, taken=taken, aside=self._aside, step=step)

    def keep_in(self, recent: Recent) -> None:
        """Those for a batch."""
        for pairs in self._of.values():
            for rollout, content in pairs:
                recent.keep(rollout, len(content))
