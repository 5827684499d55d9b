"""A fixed batch from a state and its journal: the same bytes whenever it is asked for, or a failure. Called by `Ledger.batch`."""

from collections.abc import Mapping, Sequence

from slipstream.core.codec import CodecError, rollout_from_bytes
from slipstream.core.errors import RunFailed
from slipstream.core.ids import ticket_id
from slipstream.core.records import Batch, Rollout
from slipstream.ledger.entries import SampleIndex, TicketIndex
from slipstream.ledger.intake import content_hash
from slipstream.ledger.journal import Journal
from slipstream.ledger.recent import Recent
from slipstream.ledger.state import STALE, LedgerState


def read_batch(journal: Journal, recent: Recent, state: LedgerState, step: int) -> Batch:
    """Raises RunFailed where the journal no longer has the batch, or has other bytes than were handed in.

    `recent`: rollouts that need not be read.
    """
    members = state.members(step)
    if not members:
        raise RunFailed(f"batch {step} is not in the journal any more; only batches after the kept checkpoints are")
    silent = state.left_out(step)
    stale = _rollouts(journal, recent, state, state.left_out(step, STALE))
    return Batch(
        step=step,
        rollouts=_rollouts(journal, recent, state, members),
        dropped=(*_rollouts(journal, recent, state, silent), *stale),
        aside=tuple(_decoded(journal, f"what was set aside with batch {step}", content) for content in journal.aside(step)),
        refilled_groups=len(silent),
        stale_samples=len(stale),
    )


def _rollouts(journal: Journal, recent: Recent, state: LedgerState, tickets: Sequence[TicketIndex]) -> tuple[Rollout, ...]:
    """Of several tickets, by sample index within each."""
    found: list[Rollout] = []
    for index in tickets:
        expected, here = state.entries[index].submitted, recent.of(index)
        if here.keys() != expected.keys():
            here = _read(journal, index, expected)
        found += (here[sample] for sample in sorted(here))
    return tuple(found)


def _read(journal: Journal, index: TicketIndex, expected: Mapping[SampleIndex, str]) -> dict[SampleIndex, Rollout]:
    """A ticket's rollouts from the journal, each with the hash of what was handed in."""
    whose, contents = f"the rollouts of {ticket_id(index)}", journal.rollouts(index)
    here = {sample: _decoded(journal, whose, content) for sample, content in contents.items()}
    if {sample: content_hash(contents[sample], rollout) for sample, rollout in here.items()} != expected:
        raise _damaged(journal, whose)
    return here


def _decoded(journal: Journal, whose: str, content: bytes) -> Rollout:
    try:
        return rollout_from_bytes(content)
    except (CodecError, ValueError) as error:
        raise _damaged(journal, whose) from error


def _damaged(journal: Journal, whose: str) -> RunFailed:
    return RunFailed(f"{journal.path} is damaged: {whose} are not those that were handed in; start a new run")
