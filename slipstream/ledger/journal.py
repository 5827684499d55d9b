"""The journal: an append-only SQLite file of events, and the bytes of rollouts that may still be needed. An actor.

Every event is on disk before anyone acts on it. Write-ahead logging survives the death of the process at any instant;
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
"""


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

    def events(self) -> Iterator[Event]:
        """All events in order. Raises RunFailed at the first that cannot be read."""
        with self._failures():
            for seq, kind, body in self._database.execute("select seq, kind, body from event order by seq"):
                try:
                    yield decode(kind, body)
                except (KeyError, TypeError, ValueError) as error:
                    raise RunFailed(f"{self._path} is damaged: its event {seq} cannot be read ({error!r})") from error

    def append(self, time_s: float, events: Sequence[Event], rollouts: Iterable[tuple[int, int, bytes]] = ()) -> None:
        """Write events and rollout bytes (ticket, sample, content) in one transaction: all of it or nothing."""
        rows = [(time_s, *encode(event)) for event in events]
        with self._failures(), self._transaction():
            self._database.executemany("insert into event (time, kind, body) values (?, ?, ?)", rows)
            self._database.executemany("insert into rollout values (?, ?, ?)", rollouts)

    def rollouts(self, ticket: int) -> dict[int, bytes]:
        """Bytes of a ticket's rollouts by sample index, in its order."""
        with self._failures():
            return dict(self._database.execute("select sample, content from rollout where ticket = ? order by sample", (ticket,)))

    def forget(self, time_s: float, event: Event, tickets: Sequence[int]) -> None:
        """Write the event and delete the rollouts of tickets that can never be asked for again."""
        with self._failures(), self._transaction():
            self._database.execute("insert into event (time, kind, body) values (?, ?, ?)", (time_s, *encode(event)))
            self._database.executemany("delete from rollout where ticket = ?", [(ticket,) for ticket in tickets])

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
