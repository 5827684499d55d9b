"""Keeps status.json of a run: a thread that writes what everyone does, every few seconds. For embedded runs; coordinators do alike."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from slipstream.core.clock import Clock
from slipstream.runtime.assembly import Assembly
from slipstream.runtime.worker import Worker
from slipstream.telemetry.status import RoleStatus, RunStatus, write_status

EVERY_S = 2.0


class StatusKeeper:
    """`moment` is asked each time. A failure (a full disk) ends the keeping, and is raised at `close`."""

    def __init__(self, path: Path, moment: Callable[[], RunStatus], every_s: float = EVERY_S) -> None:
        self._path, self._moment, self._every_s = path, moment, every_s
        self._ending = threading.Event()
        self._worker = Worker("status", self._run, lambda: None)
        self._worker.start()

    def close(self) -> None:
        """Write the last moment and end."""
        self._ending.set()
        self._worker.join(self._every_s)
        self._worker.check()

    def _run(self) -> None:
        while True:
            ended = self._ending.wait(self._every_s)
            write_status(self._path, self._moment())
            if ended:
                return


def embedded_moment(parts: Assembly, clock: Clock) -> RunStatus:
    """Of a run in one process."""
    roles = parts.roles
    kinds = (("learner", "learner", roles.learner_phases), ("sampler-0", "sampler", roles.sampler_phases))
    phases = [*kinds, ("evaluator", "evaluator", roles.evaluator_phases)]
    return RunStatus(
        time=round(clock.now_s(), 3),
        unix_s=time.time(),
        roles=tuple(RoleStatus(role=role, kind=kind, phase=one.current, phase_s=round(one.waited_s(), 3)) for role, kind, one in phases),
        flow=parts.ledger.flow() if roles.samples else None,
    )
