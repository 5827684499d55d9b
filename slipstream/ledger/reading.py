"""A fixed batch from a state and its journal: the same bytes whenever it is asked for, or a failure. Called by `Ledger.batch`."""

from collections.abc import Sequence

from slipstream.core.codec import rollout_from_bytes
from slipstream.core.errors import RunFailed
from slipstream.core.ids import ticket_id
from slipstream.core.records import Batch, Rollout
from slipstream.ledger.entries import TicketIndex
from slipstream.ledger.intake import bytes_hash
from slipstream.ledger.journal import Journal
from slipstream.ledger.rules import DATA_DIGITS
from slipstream.ledger.state import STALE, LedgerState


def read_batch(journal: Journal, state: LedgerState, step: int) -> Batch:
    """Raises RunFailed where the journal no longer has the batch, or has other bytes than were handed in."""
    members = state.members(step)
    if not members:
        raise RunFailed(f"batch {step} is not in the journal any more; only batches after the kept checkpoints are")
    silent = state.left_out(step)
    stale = _rollouts(journal, state, state.left_out(step, STALE))
    return Batch(
        step=step,
        rollouts=_rollouts(journal, state, members),
        dropped=(*_rollouts(journal, state, silent), *stale),
        refilled_groups=len(silent),
        stale_samples=len(stale),
    )


def _rollouts(journal: Journal, state: LedgerState, tickets: Sequence[TicketIndex]) -> tuple[Rollout, ...]:
    """Of several tickets, by sample index within each."""
    found: list[Rollout] = []
    for index in tickets:
        contents = journal.rollouts(index)
        expected = {sample: content[DATA_DIGITS:] for sample, content in state.entries[index].submitted.items()}
        if {sample: bytes_hash(content) for sample, content in contents.items()} != expected:
            raise RunFailed(
                f"the journal is damaged: the rollouts of {ticket_id(index)} are not those that were handed in; start a new run"
            )
        found += map(rollout_from_bytes, contents.values())
    return tuple(found)
