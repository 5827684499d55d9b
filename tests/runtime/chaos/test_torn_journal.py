"""A power cut takes the end of the journal: what is left is a beginning of it, and workers who remember more join anew."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import StaleEpoch
from slipstream.core.records import Receipt
from slipstream.ledger.journal import Journal
from slipstream.ledger.ledger import Ledger
from slipstream.runtime.chaos.journal_tail import log_of, tear
from tests.ledger.rollouts import NumberedPrompts, make_rollout
from tests.runtime.coordinator.here import CALLERS, INFLIGHT, claimed, coordinator, remote, seat


@pytest.fixture(autouse=True)
def _callers_closed() -> Iterator[None]:
    yield
    while CALLERS:
        CALLERS.pop().close()


def as_killed(journal: Path, to: Path) -> Path:
    """A copy of the files as a process that is killed now leaves them."""
    to.mkdir(exist_ok=True)
    for end in ("", "-wal", "-shm"):
        shutil.copy(journal.with_name(journal.name + end), to)
    return to / journal.name


def events_of(journal: Path) -> list:
    with closing(Journal(journal)) as opened:
        return list(opened.events())


def test_what_is_left_of_a_torn_journal_is_a_beginning_with_all_that_was_forced_to_the_disk(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "journal.sqlite", INFLIGHT, NumberedPrompts(), ManualClock(), run_id="run")) as ledger:
        worker = ledger.join("sampler", "one", {}).worker
        ledger.sync()
        assert log_of(tmp_path / "journal.sqlite").pending == 0
        ledger.claim(worker, 1, 0)
        ledger.join("sampler", "two", {})  # the ledger waits for the disk, without copying the log
        safe = ledger.journal_length()
        for _ in range(3):
            for ticket in ledger.claim(worker, 1, 0):
                ledger.submit([make_rollout(ticket, sample, [0]) for sample in ticket.samples])
        killed = as_killed(tmp_path / "journal.sqlite", tmp_path / "killed")
    assert log_of(killed).pending > 3
    whole = events_of(as_killed(killed, tmp_path / "whole"))
    kept = set[int]()
    for seed in range(10):
        torn = as_killed(killed, tmp_path / "torn")
        told = tear(torn, random.Random(seed))
        assert "bytes that were not on the disk are" in told
        left = events_of(torn)
        assert left == whole[: len(left)]
        assert safe <= len(left) < len(whole)
        kept.add(len(left))
    assert len(kept) > 2  # at different places


def lose(journal: Path, kind: str) -> None:
    """The end of the journal from the first event of a kind on."""
    with closing(sqlite3.connect(journal)) as database:
        (first,) = database.execute("select min(seq) from event where kind = ?", (kind,)).fetchone()
        database.execute("delete from event where seq >= ?", (first,))
        database.execute("delete from rollout")
        database.commit()


def test_a_worker_whose_claim_was_lost_joins_anew_and_draws_it_again(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        port = here.port
        one = remote(seat(here.url))
        tickets = claimed(one, 2)
    lose(tmp_path / "journal.sqlite", "Claimed")
    with coordinator(tmp_path, INFLIGHT, port=port):
        with pytest.raises(StaleEpoch, match="has lost that sampler-0 claimed ticket 0; join again"):
            one.submit([make_rollout(tickets[0], 0, [0])])
        with pytest.raises(StaleEpoch, match="join again"):
            claimed(one)
        one.let_go()
        one._seat.rejoin(one._seat.joined.epoch)
        again = claimed(one, 2)
        assert [ticket.index for ticket in again] == [ticket.index for ticket in tickets]
        assert one.submit([make_rollout(again[0], 0, [0])]) == [Receipt.ACCEPTED]


def test_a_claim_of_a_ticket_that_had_come_back_may_be_lost_too(tmp_path: Path) -> None:
    """It is open again by the journal; its holder must not be given it once more while it works on it."""
    with coordinator(tmp_path, INFLIGHT) as here:
        port = here.port
        first, second = seat(here.url, name="first"), remote(seat(here.url, name="second"))
        tickets = claimed(remote(first))
        first.leave(1.0)
        (length,) = [here.ledger.journal_length()]
        assert [ticket.index for ticket in claimed(second)] == [ticket.index for ticket in tickets]
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        database.execute("delete from event where seq > ?", (length,))
        database.commit()
    with coordinator(tmp_path, INFLIGHT, port=port), pytest.raises(StaleEpoch, match="join again"):
        claimed(second)
