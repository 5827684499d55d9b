"""The journal: an append-only SQLite file of events, and the bytes of rollouts that may still be needed. An actor.

Beside them, and only to save time: snapshots of the state, and partial tokens of running samples.

Every event is written before anyone acts on it, and survives the death of the process at any instant (write-ahead logging). A power cut
it survives from the next event of `events.DURABLE` on, whose transaction waits for the disk: so a batch that was handed out stays fixed
with all its samples, a step that was committed stays trained, and the next term is another one.
What came after that may be lost from the end, in whole transactions: joins (epochs of a later term are higher, so nobody is taken for a
worker that is forgotten), claims and returns of tickets, samples handed in for later batches, departures, counts. `sync` waits for the
disk too, and is called before a checkpoint is declared to exist.
"""

import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import RunFailed
from slipstream.ledger.events import DURABLE, Event, decode, encode
from slipstream.telemetry.atomic import disk_space_named

SCHEMA = """
create table if not exists event (seq integer primary key, time real not null, kind text not null, body text not null);
create table if not exists rollout (ticket integer, sample integer, content blob not null, primary key (ticket, sample));
create table if not exists aside (step integer not null, content blob not null);
create index if not exists aside_step on aside (step);
create table if not exists snapshot (seq integer primary key, content text not null);
create table if not exists partial (ticket integer, sample integer, content blob not null, primary key (ticket, sample)) without rowid;
"""
SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What becomes of rollouts' bytes together with some events, in this order."""

    anew: Sequence[int] = ()  # tickets that are drawn again: what is in of them is set aside, and their partial tokens are dropped
    taken: Sequence[tuple[int, int, bytes]] = ()  # ticket, sample, content
    aside: Sequence[bytes] = ()  # of no use to any batch
    step: int = 0  # the batch with which all that is set aside is handed out, for the record
    forgotten: tuple[Sequence[int], int] = ((), 0)  # tickets, and the step before which nothing set aside can be asked for again


class Journal:
    """One run's journal file; the caller serialises access (the `Ledger` holds a lock)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waits_for_disk = False
        with self._failures():
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._database.execute("pragma journal_mode = wal")
                self._database.execute("pragma synchronous = normal")
                self._database.executescript(SCHEMA)
            except sqlite3.Error:
                self._database.close()
                raise

    def events(self, after: int = 0) -> Iterator[Event]:
        """All events behind number `after`, in order. Raises RunFailed at the first that cannot be read."""
        with self._failures():
            for seq, kind, body in self._database.execute("select seq, kind, body from event where seq > ? order by seq", (after,)):
                try:
                    yield decode(kind, body)
                except (KeyError, TypeError, ValueError) as error:
                    raise RunFailed(f"{self.path} is damaged: its event {seq} cannot be read ({error!r})") from error

    def length(self) -> int:
        """The number of the last event; they are numbered from 1 without gaps."""
        with self._failures():
            return self._database.execute("select coalesce(max(seq), 0) from event").fetchone()[0]

    def append(self, time_s: float, events: Sequence[Event], contents: Contents | None = None) -> None:
        """Write events and what becomes of rollouts in one transaction: all of it or nothing."""
        rows = [(time_s, *encode(event)) for event in events]
        with self._failures():
            self._wait_for_disk(any(isinstance(event, DURABLE) for event in events))
            with self._transaction():
                self._database.executemany("insert into event (time, kind, body) values (?, ?, ?)", rows)
                if contents is not None:
                    self._write(contents)

    def _write(self, contents: Contents) -> None:
        step, (forgotten, before) = contents.step, contents.forgotten
        run = self._database.executemany
        run("insert into aside select ?, content from rollout where ticket = ? order by sample", [(step, one) for one in contents.anew])
        for table in ("rollout", "partial"):
            run(f"delete from {table} where ticket = ?", [(ticket,) for ticket in (*contents.anew, *forgotten)])
        run("insert into rollout values (?, ?, ?)", contents.taken)
        run("insert into aside values (?, ?)", [(step, content) for content in contents.aside])
        if before:
            self._database.execute("delete from aside where step < ?", (before,))

    def _wait_for_disk(self, wanted: bool) -> None:
        """Whether transactions from now on do, and with them all that came before."""
        if wanted != self._waits_for_disk:
            self._database.execute(f"pragma synchronous = {'full' if wanted else 'normal'}")
            self._waits_for_disk = wanted

    def rollouts(self, ticket: int) -> dict[int, bytes]:
        """Bytes of a ticket's rollouts by sample index, in its order."""
        with self._failures():
            return dict(self._database.execute("select sample, content from rollout where ticket = ? order by sample", (ticket,)))

    def aside(self, step: int) -> list[bytes]:
        """Bytes of what was set aside, as it came."""
        with self._failures():
            return [content for (content,) in self._database.execute("select content from aside where step = ? order by rowid", (step,))]

    def save_snapshot(self, content: str) -> None:
        """A state as it is after the last event; the newest few are kept."""
        with self._failures(), self._transaction():
            self._database.execute("insert or replace into snapshot select max(seq), ? from event", (content,))
            kept = "select seq from snapshot order by seq desc limit ?"
            self._database.execute(f"delete from snapshot where seq not in ({kept})", (SNAPSHOTS_KEPT,))

    def snapshots(self) -> list[tuple[int, str]]:
        """Number of the last event and content of each snapshot, the newest first."""
        with self._failures():
            return self._database.execute("select seq, content from snapshot order by seq desc").fetchall()

    def save_partials(self, partials: Iterable[tuple[int, int, bytes]]) -> None:
        """Partial tokens (ticket, sample, content), in place of earlier ones."""
        with self._failures(), self._transaction():
            self._database.executemany("insert or replace into partial values (?, ?, ?)", partials)

    def partials(self, ticket: int) -> list[bytes]:
        """Partial tokens of a ticket's samples, by sample."""
        with self._failures():
            found = self._database.execute("select content from partial where ticket = ? order by sample", (ticket,))
            return [content for (content,) in found]

    def tickets_with_partials(self) -> set[int]:
        with self._failures():
            return {ticket for (ticket,) in self._database.execute("select distinct ticket from partial")}

    def drop_partials(self, tickets: Iterable[int]) -> None:
        with self._failures(), self._transaction():
            self._database.executemany("delete from partial where ticket = ?", [(ticket,) for ticket in tickets])

    def sync(self) -> None:
        """Force everything written so far to the disk itself, whoever is reading the file meanwhile."""
        with self._failures():
            self._database.execute("pragma wal_checkpoint(passive)").fetchall()
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists():  # what a reader kept out of the database is whole in the log
            with disk_space_named(log), log.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        with self._failures():
            self._database.close()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._database.execute("begin immediate")
        try:
            yield
            self._database.execute("commit")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it already
                self._database.execute("rollback")
            raise

    @contextmanager
    def _failures(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise RunFailed(f"no space left on device while using {self.path}; free space and go on with --resume") from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise RunFailed(f"{self.path} is damaged ({error}); put back a copy of it or start a new run") from error
            raise RunFailed(f"{error} while using {self.path}; go on with --resume") from error
