"""Does the faults of a schedule to a run that a supervisor keeps, one after the other, and notes how long each held it up. An actor.

The supervisor calls `look` again and again; nothing here blocks it for long. Called by `chaos.running`.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.runtime.chaos.faults import COORDINATOR, ON_THE_WIRE, Fault, FaultKind
from slipstream.runtime.chaos.journal_tail import log_of, tear
from slipstream.runtime.chaos.proxy import Proxy
from slipstream.runtime.chaos.small_disk import SmallDisk
from slipstream.runtime.processes.supervisor import Role
from slipstream.telemetry.jsonl import read_jsonl

STRIKE_S = 60.0  # for a fault on the wire to find something to hurt
FELT_S = 10.0  # for somebody to notice a full disk
MOST_LEFT_BYTES = 64 << 10  # on a full disk
DELAYED_S = 3.0  # for how long pieces come late

Waiting = Generator[None]  # goes on with the next look


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A fault as it went."""

    fault: Fault
    step: int  # the highest that was trained before
    detail: str
    struck: bool  # it found something to hurt
    recovery_s: float | None  # until a further step than ever was trained; None: the run ended before


class Director:
    """`roles` are the supervisor's own records of its processes."""

    def __init__(
        self,
        schedule: Sequence[Fault],
        *,
        roles: Sequence[Role],
        journal: Path,
        metrics: Path,
        proxy: Proxy,
        disk: SmallDisk | None,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        """`journal`: the coordinator's. `metrics`: the learner's, by which the run is seen to get on. `disk`: needed where the
        schedule fills it. `tell` is told of each fault."""
        self.done: list[Done] = []
        self._roles = {role.name: role for role in roles}
        self._journal, self._metrics, self._proxy, self._disk, self._tell = journal, metrics, proxy, disk, tell
        self._rng = random.Random(seed)
        self._steps = 0
        self._metrics_state: tuple[int, int] = (0, 0)
        self._script = self._play(schedule)
        self._present: tuple[Fault, int, str] | None = None  # what is not recovered from yet

    def look(self) -> None:
        """Go on as far as there is nothing to wait for."""
        self._count_steps()
        next(self._script, None)

    def end(self) -> None:
        """The run is over: a fault that it did not recover from before stays so."""
        if self._present is not None:
            fault, step, detail = self._present
            self.done.append(Done(fault=fault, step=step, detail=detail, struck=True, recovery_s=None))

    def _play(self, schedule: Sequence[Fault]) -> Waiting:
        for fault in schedule:
            yield from _until(lambda fault=fault: self._steps >= fault.after_step)
            yield from _pause(fault.wait_s)
            step, began_s = self._steps, time.monotonic()
            self._present = (fault, step, "")
            detail = yield from self._do(fault)
            self._present = (fault, step, detail or "")
            yield from _until(lambda step=step: self._steps > step)
            took_s = time.monotonic() - began_s
            self._present = None
            self.done.append(Done(fault=fault, step=step, detail=detail or "", struck=detail is not None, recovery_s=took_s))
            self._tell(f"step {step}: {fault.kind}, {fault.target}: {detail or 'nothing was hurt'}; a further step after {took_s:.1f} s")

    def _do(self, fault: Fault) -> Generator[None, None, str | None]:
        """What was done, in words; None where there was nothing to hurt."""
        match fault.kind:
            case FaultKind.KILL:
                return (yield from self._kill(fault.target))
            case FaultKind.FREEZE:
                return (yield from self._freeze(fault.target, fault.seconds))
            case FaultKind.TORN_JOURNAL:
                return (yield from self._tear())
            case FaultKind.FULL_DISK:
                return (yield from self._fill())
            case _:
                assert fault.kind in ON_THE_WIRE
                return (yield from self._hurt(fault))

    def _kill(self, name: str) -> Generator[None, None, str]:
        role = self._roles[name]
        yield from _until(lambda: role.child is not None)
        assert role.child is not None
        pid = role.child.pid
        os.kill(pid, signal.SIGKILL)
        yield from self._replaced(role, pid)
        return "SIGKILL"

    def _freeze(self, name: str, seconds: float) -> Generator[None, None, str]:
        role = self._roles[name]
        yield from _until(lambda: role.child is not None)
        assert role.child is not None
        pid = role.child.pid
        os.kill(pid, signal.SIGSTOP)
        yield from _pause(seconds)
        os.kill(pid, signal.SIGCONT)
        return f"SIGSTOP for {seconds:.1f} s"

    def _tear(self) -> Generator[None, None, str]:
        """At a moment when something may be lost."""
        role, journal = self._roles[COORDINATOR], self._journal
        yield from _until(lambda: role.child is not None)
        assert role.child is not None
        pid, until_s = role.child.pid, time.monotonic() + STRIKE_S
        while not log_of(journal).pending and time.monotonic() < until_s:
            yield
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it is for the supervisor to take its end
        done = tear(journal, self._rng)
        yield from self._replaced(role, pid)
        return done

    def _fill(self) -> Generator[None, None, str]:
        assert self._disk is not None, "a schedule that fills the disk needs one"
        left = self._rng.randrange(MOST_LEFT_BYTES)
        deaths = {name: len(role.exits) for name, role in self._roles.items()}
        place = f"{self._disk.path}/"
        self._disk.fill(left)
        until_s = time.monotonic() + FELT_S

        def died() -> list[str]:
            ended = {name: role.exits[deaths[name]].cause for name, role in self._roles.items() if len(role.exits) > deaths[name]}
            return [f"{name} died, {cause.partition('; free space')[0].replace(place, '')}" for name, cause in ended.items()]

        while not died() and time.monotonic() < until_s:
            yield
        yield from _pause(self._rng.uniform(0.0, 3.0))
        self._disk.release()
        return f"{left:,} bytes left; " + ("; ".join(died()) or "nobody noticed")

    def _hurt(self, fault: Fault) -> Generator[None, None, str | None]:
        proxy, before = self._proxy, len(self._proxy.strikes())
        if fault.kind is FaultKind.CUT:
            proxy.cut(fault.target)
        elif fault.kind is FaultKind.CORRUPT_CHUNK:
            proxy.corrupt(fault.target)
        elif fault.kind is FaultKind.HALF_OPEN:
            proxy.half_open(fault.target, fault.seconds)
        else:
            proxy.delay(fault.target, fault.seconds)
            yield from _pause(DELAYED_S)
            proxy.delay(fault.target, 0.0)
        until_s = time.monotonic() + STRIKE_S
        while len(strikes := proxy.strikes()) == before:
            if time.monotonic() > until_s:
                proxy.disarm(fault.target)
                return None
            yield
        return strikes[before].detail

    def _replaced(self, role: Role, pid: int) -> Waiting:
        """Until the supervisor has started it again."""
        yield from _until(lambda: role.child is not None and role.child.pid != pid)

    def _count_steps(self) -> None:
        try:
            stat = self._metrics.stat()
        except FileNotFoundError:
            return
        if (stat.st_ino, stat.st_size) != self._metrics_state:
            self._metrics_state = (stat.st_ino, stat.st_size)
            self._steps = max([self._steps, *(row["step"] for row in read_jsonl(self._metrics))])


def _until(holds: Callable[[], bool]) -> Waiting:
    while not holds():
        yield


def _pause(seconds: float) -> Waiting:
    until_s = time.monotonic() + seconds
    yield from _until(lambda: time.monotonic() >= until_s)
