"""The state that a journal leads to, from its newest snapshot on. Called by the `Ledger` when it opens one."""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager

from slipstream.core.errors import TransitionError
from slipstream.ledger.events import Opened
from slipstream.ledger.journal import Journal
from slipstream.ledger.snapshots import SnapshotError, snapshot_from_text
from slipstream.ledger.state import LedgerState
from slipstream.ledger.transition import apply


def replayed(journal: Journal, empty: LedgerState, warn: Callable[[str], None]) -> tuple[LedgerState, int] | None:
    """The state, and how many events had to be played; None for a new journal. `empty`: a state with the rules of the run.

    `warn` is told of a snapshot that could not be used. Raises RunFailed for a journal that cannot be read, TransitionError for one
    that makes no sense or is of other rules.
    """
    first = next(journal.events(), None)
    if first is None:
        return None
    if not isinstance(first, Opened):
        raise TransitionError("its first event is missing")
    with _collector_paused():
        after, state = _newest_snapshot(journal, empty, warn) or (1, apply(first, empty))
        state, played = state.draft(), 0
        for event in journal.events(after):
            state = apply(event, state)
            played += 1
    return state.sealed(), played


@contextmanager
def _collector_paused() -> Generator[None]:
    """A state of 10^5 tickets is many objects and no cycle; looking for one again and again takes longer than all else."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _newest_snapshot(journal: Journal, empty: LedgerState, warn: Callable[[str], None]) -> tuple[int, LedgerState] | None:
    """The newest that is whole and of this journal, with the number of its last event; the journal can do without any."""
    for seq, content in journal.snapshots():
        try:
            if seq > journal.length():
                raise SnapshotError("the journal ends before it")
            state = snapshot_from_text(content)
            if state.policy != empty.policy:
                raise SnapshotError("it is of a run with other rules")
            return seq, state
        except SnapshotError as error:
            warn(f"{journal.path}: the snapshot after event {seq} is not used, and more of the journal is played: {error}")
    return None
