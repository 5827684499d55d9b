"""The journal: an append-only SQLite file of events, and the bytes of rollouts that may still be needed. An actor.

Beside them, and only to save time: snapshots of the state, and partial tokens of running samples. Every event is on disk before anyone
acts on it. Write-ahead logging survives the death of the process at any instant;
`sync` also makes everything so far survive a power cut, and is called before a checkpoint is declared to exist.
"""

import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slipstream.core.errors import RunFailed
from slipstream.ledger.events import Event, decode, encode
from slipstream.telemetry.atomic import disk_space_named

SCHEMA = """
create table if not exists event (seq integer primary key, time real not null, kind text not null, body text not null);
create table if not exists rollout (ticket integer, sample integer, content blob not null, primary key (ticket, sample)) without rowid;
create table if not exists snapshot (seq integer primary key, content text not null);
create table if not exists partial (ticket integer, sample integer, content blob not null, primary key (ticket, sample)) without rowid;
"""
SNAPSHOTS_KEPT = 2


class Journal:
    """One run's journal file; the caller serialises access (the `Ledger` holds a lock)."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
                    raise RunFailed(f"{self._path} is damaged: its event {seq} cannot be read ({error!r})") from error

    def length(self) -> int:
        """The number of the last event; they are numbered from 1 without gaps."""
        with self._failures():
            return self._database.execute("select coalesce(max(seq), 0) from event").fetchone()[0]

    def append(
        self,
        time_s: float,
        events: Sequence[Event],
        rollouts: Iterable[tuple[int, int, bytes]] = (),
        discarded: Sequence[int] = (),
    ) -> None:
        """Write events and rollout bytes (ticket, sample, content) in one transaction: all of it or nothing.

        What is there of `discarded` tickets goes first: they are drawn anew, or can never be asked for again.
        """
        rows = [(time_s, *encode(event)) for event in events]
        with self._failures(), self._transaction():
            self._database.executemany("insert into event (time, kind, body) values (?, ?, ?)", rows)
            for table in ("rollout", "partial") if discarded else ():
                self._database.executemany(f"delete from {table} where ticket = ?", [(ticket,) for ticket in discarded])
            self._database.executemany("insert into rollout values (?, ?, ?)", rollouts)

    def rollouts(self, ticket: int) -> dict[int, bytes]:
        """Bytes of a ticket's rollouts by sample index, in its order."""
        with self._failures():
            return dict(self._database.execute("select sample, content from rollout where ticket = ? order by sample", (ticket,)))

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
        log = self._path.with_name(f"{self._path.name}-wal")
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
                raise RunFailed(f"no space left on device while using {self._path}; free space and go on with --resume") from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise RunFailed(f"{self._path} is damaged ({error}); put back a copy of it or start a new run") from error
            raise RunFailed(f"{error} while using {self._path}; go on with --resume") from error
