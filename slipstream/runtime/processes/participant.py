"""What every role process has in common: its seat in the run, its clock, its events, the threads that keep them. Used by the roles."""

import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import numpy as np

from slipstream.config.load import parse_config
from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.errors import RunFailed, SlipstreamError
from slipstream.core.records import Progress
from slipstream.loop.phases import Phases
from slipstream.runtime.coordinator.tls import server_context
from slipstream.runtime.join.address import JoinSettings
from slipstream.runtime.join.caller import DEADLINE_S, Caller, Ending
from slipstream.runtime.join.events import RemoteEvents
from slipstream.runtime.join.membership import Applicant, Head, Seat
from slipstream.runtime.join.renewer import Renewer
from slipstream.runtime.stop import StopFlag
from slipstream.runtime.watchdog import Watchdog, end_process

if TYPE_CHECKING:
    from slipstream.runtime.processes.weight_server import WeightServer

GRACE_S = 15.0  # for a role with an overdue phase to end by itself; whoever supervises it starts it again
LEAST_DEADLINE_S = 5.0  # of a call; else as long as a lease: who waits for longer has lost it anyway
FAREWELL_S = 5.0  # for the last events and for leaving, with a coordinator that does not answer


class Participant:
    """One process in a run, from joining to `end`."""

    def __init__(
        self, kind: Literal["sampler", "learner", "grader"], settings: JoinSettings, capabilities: Mapping[str, str], stop: StopFlag
    ) -> None:
        """Joins. Raises UsageError when the coordinator refuses, Ending when told to stop while it was away."""
        address = settings.address
        told = {**capabilities, "host": socket.gethostname(), "pid": str(os.getpid())}
        self.caller = Caller(address, role=kind, clock=SystemClock(), rng=np.random.default_rng(), stopped=stop.is_set)
        with ExitStack() as unless_joined:
            self._server = _weight_server(settings) if kind != "grader" else None
            if self._server is not None:
                unless_joined.callback(self._server.close)
                self.weights_url = settings.advertise or self._server.url  # where others reach the server
                told["weights"] = self.weights_url
            applicant = Applicant(kind=kind, incarnation=settings.name or uuid.uuid4().hex, capabilities=told)
            self.seat = Seat(self.caller, applicant)
            unless_joined.pop_all()
        joined = self.seat.joined
        self.caller.deadline_s = min(DEADLINE_S, max(LEAST_DEADLINE_S, joined.lease_s))
        self.config: RunConfig = parse_config(joined.config)
        self.clock = SystemClock(offset_s=joined.clock_s)
        self.events = RemoteEvents(self.seat, self.clock)
        self.caller.events = self.events
        self.events.start()
        self.renewer: Renewer | None = None
        self._overdue: str | None = None

    @property
    def name(self) -> str:
        """The worker's, as everybody calls it."""
        return self.seat.joined.worker

    @property
    def server(self) -> "WeightServer":
        """Of a role that has weights."""
        assert self._server is not None
        return self._server

    def keep_lease(self, progress: Callable[[], Progress], counters: Callable[[], Head], on_change: Callable[[], None]) -> Renewer:
        """Renew from now on."""
        self.renewer = Renewer(self.seat, progress, counters, on_change)
        self.renewer.start()
        return self.renewer

    @property
    def told_to_go(self) -> bool:
        """The coordinator wants it to leave."""
        standing = self.renewer.standing if self.renewer else None
        return bool(standing and (standing.drain or standing.stop))

    def join_anew(self) -> None:
        """A new epoch after a lease that has ended. Raises as `Seat.rejoin`."""
        self.seat.rejoin(self.seat.joined.epoch)
        if self.renewer is not None:
            self.renewer.standing = None

    def watch(self, phases: Sequence[Phases]) -> Watchdog:
        """A phase that takes too long ends the role: with its cause where it still looks, else the process."""
        limits = self.config.watchdog
        return Watchdog(phases, limits.phases, limits.seconds, self.events, self._bark)

    def _bark(self, cause: str) -> None:
        self._overdue = cause
        end_process(cause, grace_s=GRACE_S)

    def check(self) -> None:
        """Raise what a thread died of, or that a phase took too long."""
        if self._overdue:
            raise RunFailed(self._overdue)
        self.events.check()
        if self._server is not None:
            self._server.check()
        if self.renewer is not None:
            self.renewer.check()

    def end(self, *, leaves: bool) -> None:
        """Send the last events, stop serving, and leave; else, or where the coordinator is away by now, it sees the lease end."""
        if self.renewer is not None:
            self.renewer.end()
        self.events.end(FAREWELL_S)
        try:
            if leaves:
                self.seat.leave(FAREWELL_S)
        except (SlipstreamError, Ending) as error:
            print(f"slipstream: could not leave politely: {error}", file=sys.stderr, flush=True)
        self.caller.end()
        if self._server is not None:
            self._server.close()


def _weight_server(settings: JoinSettings) -> "WeightServer":
    """Lazily: it brings the libraries of arrays, which a grader starts without."""
    from slipstream.runtime.processes.weight_server import WeightServer, own_address

    address, tls = settings.address, server_context(settings.tls_cert, settings.tls_key)
    return WeightServer(host=settings.host or own_address(address.url), port=settings.port, token=address.token, tls=tls)
