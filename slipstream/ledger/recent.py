"""Rollouts handed in lately, as they came, so that a batch need not be read back from the journal. Memory of the `Ledger`; may be empty."""

from collections.abc import Iterable, Mapping

from slipstream.core.records import Rollout
from slipstream.ledger.entries import SampleIndex, TicketIndex

MOST_BYTES = 256 << 20  # of rollouts as the journal has them; beyond that the oldest tickets are read back


class Recent:
    """The caller serialises access."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._rollouts: dict[TicketIndex, dict[SampleIndex, Rollout]] = {}
        self._sizes: dict[TicketIndex, int] = {}

    def keep(self, rollout: Rollout, size_bytes: int) -> None:
        """What the journal has just taken."""
        index = rollout.ticket_index
        self._rollouts.setdefault(index, {})[rollout.sample_index] = rollout
        self._sizes[index] = self._sizes.get(index, 0) + size_bytes
        self._bytes += size_bytes
        while self._bytes > self._most_bytes:
            self.forget([next(iter(self._rollouts))])

    def of(self, index: TicketIndex) -> Mapping[SampleIndex, Rollout]:
        """Those of a ticket that are here, maybe not all that are in."""
        return self._rollouts.get(index, {})

    def forget(self, tickets: Iterable[TicketIndex]) -> None:
        """They are drawn anew, or have been served."""
        for index in tickets:
            if self._rollouts.pop(index, None) is not None:
                self._bytes -= self._sizes.pop(index)
