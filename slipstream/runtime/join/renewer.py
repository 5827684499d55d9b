"""Keeps a worker's lease: a thread that says every third of the lease time how far the worker really is. Called by `runtime.processes`.

It reports the work of others and does none, so a worker that hangs is seen to hang. What the coordinator wants of the worker
(to drain, to stop, to let go of what it runs) is left here for the worker to look at.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict

from slipstream.core.errors import StaleEpoch
from slipstream.core.records import Progress, Standing
from slipstream.runtime.join.caller import Ending
from slipstream.runtime.join.membership import Head, Seat
from slipstream.runtime.worker import Worker

LEAST_DEADLINE_S = 1.0


class Renewer:
    """One thread. `standing` is the last answer, None before the first."""

    def __init__(self, seat: Seat, progress: Callable[[], Progress], counters: Callable[[], Head], on_change: Callable[[], None]) -> None:
        self._seat, self._progress, self._counters, self._on_change = seat, progress, counters, on_change
        self._ending = threading.Event()
        self._worker = Worker("renewer", self._run, on_change)
        self.standing: Standing | None = None
        self._ended = 0  # the newest epoch whose lease is known to have ended; they count from 1

    def start(self) -> None:
        self._worker.start()

    @property
    def stale(self) -> bool:
        """The lease has ended, and the worker has not joined anew."""
        return self._ended == self._seat.joined.epoch

    def check(self) -> None:
        """Raise what the thread died of."""
        self._worker.check()

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._seat.joined.lease_s / 3):
            epoch = self._seat.joined.epoch
            try:
                self._renew()
            except StaleEpoch:
                self._ended = epoch
                self._on_change()
            except Ending:
                return

    def _renew(self) -> None:
        """A lease that is known to have ended is not renewed until the worker has joined anew."""
        if self.stale:
            return
        told = {**asdict(self._progress()), **self._counters()}
        deadline_s = max(LEAST_DEADLINE_S, self._seat.joined.lease_s / 3)  # a call that gets lost leaves time for another one
        standing = Standing(**self._seat.call("renew", told, deadline_s=deadline_s).json())
        changed = standing != self.standing
        self.standing = standing
        if changed:
            self._on_change()
