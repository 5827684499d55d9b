"""`slipstream train --on processes`: coordinator, learner, samplers and graders on this machine, started and kept alive. An actor.

A role that dies is started again, under its name, so that it takes its place at once; one that dies again and again ends the run
with its cause. A role that is not heard of for long is killed and started again. Told to stop, everybody leaves politely, the
coordinator last.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.processes.child import Child, Exit
from slipstream.runtime.processes.health import Notes, health
from slipstream.runtime.stop import STOPPED, StopFlag

LOOK_S = 0.1
LISTEN_S = 1.0  # between two questions of who is here
RESTARTS = 5  # of one role, each time before it has lived for SETTLED_S or the run has come further than ever
SETTLED_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
START_S = 120.0  # for the coordinator to answer
DRAIN_S = 120.0  # for everybody to leave, once told to
SILENT_S = 300.0  # a role that its coordinator does not hear of for so long is as good as dead
COORDINATOR, GRADER = "coordinator", "grader-"


@dataclass(slots=True, kw_only=True)
class Role:
    """One role and its present process."""

    name: str
    command: Sequence[str]
    child: Child | None = None
    started_s: float = 0.0
    heard_s: float = 0.0  # when its coordinator last knew it
    started_version: int = 0  # the highest that the run had come to by then
    failures: int = 0  # in a row
    restart_at_s: float | None = None
    done: bool = False
    exits: list[Exit] = field(default_factory=list[Exit])


class Supervisor:
    """One use."""

    def __init__(
        self,
        run_dir: Path,
        url: str,
        roles: Sequence[Role],
        stop: StopFlag,
        look: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`roles`: coordinator, which answers at `url`, learner, the others. `look` is called again and again; `note` tells a person."""
        self._run_dir, self._url, self._stop, self._look, self._note = run_dir, url, stop, look, note
        self._roles = list(roles)
        self._coordinator, self._learner = self._roles[:2]
        self._notes = Notes(url)
        self._listened_s = 0.0
        self._version = 0  # the highest that the run has come to

    def run(self) -> bool:
        """To the end of the run (True), or until told to stop (False). Raises RunFailed when a role cannot be kept alive."""
        try:
            self._start(self._coordinator)
            self._await_coordinator()
            for role in self._roles[1:]:
                self._start(role)
            while not self._over and not self._stop.is_set():
                self._tend()
                self._look()
                time.sleep(LOOK_S)
            over = self._over
            self._drain()
            return over
        finally:
            self._kill()

    @property
    def _over(self) -> bool:
        """Coordinator and learner have ended well; samplers that are left are of no use."""
        return self._coordinator.done and self._learner.done

    def _await_coordinator(self) -> None:
        until_s = time.monotonic() + START_S
        while health(self._url) is None:
            self._tend()
            if self._stop.is_set() or self._coordinator.done:
                return
            if time.monotonic() > until_s:
                raise RunFailed(f"the coordinator does not answer after {START_S:.0f} s; log: {self._log(self._coordinator)}")
            time.sleep(LOOK_S)

    def _tend(self) -> None:
        """Take note of who has ended, start again who should run, kill who is silent."""
        now_s = time.monotonic()
        for role in self._roles:
            ended = role.child.poll() if role.child else None
            if ended is not None:
                self._ended(role, ended, now_s)
            if role.restart_at_s is not None and now_s >= role.restart_at_s and not self._stop.is_set():
                self._start(role)
        self._listen(now_s)
        self._notes.flush()

    def _ended(self, role: Role, ended: Exit, now_s: float) -> None:
        role.child = None
        role.exits.append(ended)
        if ended.code == 0 or (self._stop.is_set() and ended.code == STOPPED) or self._coordinator.done:
            role.done = True
            return
        if ended.code == UsageError.exit_code:
            raise UsageError(_words(role, ended))
        settled = now_s - role.started_s >= SETTLED_S or self._version > role.started_version
        role.failures = 1 if settled else role.failures + 1
        self._notes.add(
            "role_died",
            name=role.name,
            exit_code=ended.code if ended.code >= 0 else None,
            signal=signal.Signals(-ended.code).name if ended.code < 0 else None,
            peak_bytes=ended.peak_bytes,
            last_lines=list(ended.last_lines),
            disk_full=ended.disk_full,
            deaths=role.failures,
        )
        self._note(f"{role.name} died: {ended.cause}; it is started again")
        if role.failures > RESTARTS:
            raise RunFailed(f"{role.name} died {role.failures} times in a row, the last time by {ended.end}: {_words(role, ended)}")
        role.restart_at_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (role.failures - 1))

    def _listen(self, now_s: float) -> None:
        """Who is here, as the coordinator sees it."""
        if now_s - self._listened_s < LISTEN_S:
            return
        here, self._listened_s = health(self._url), now_s
        if here is not None:
            self._coordinator.heard_s, self._version = now_s, max(self._version, here.version)
            for role in self._roles[1:]:
                if role.name in here.names:
                    role.heard_s = now_s
        for role in self._roles:
            silent_s = now_s - max(role.heard_s, role.started_s)
            if role.child is not None and silent_s > SILENT_S and (here is not None or role is self._coordinator):
                self._notes.add("role_silent", name=role.name, seconds=round(silent_s, 1))
                self._note(f"{role.name} was not heard of for {silent_s:.0f} s and is killed")
                role.child.signal(signal.SIGKILL)
                role.heard_s = now_s

    def _start(self, role: Role) -> None:
        role.child, role.restart_at_s = Child(role.command, self._log(role)), None
        role.started_s, role.started_version = time.monotonic(), self._version
        self._notes.add("role_started", name=role.name, pid=role.child.pid, start=len(role.exits) + 1)

    def _log(self, role: Role) -> Path:
        return self._run_dir / "logs" / f"{role.name}.log"

    def _drain(self) -> None:
        """Samplers and learner first: they have something to tell the coordinator, and perhaps something to be judged."""
        until_s = time.monotonic() + DRAIN_S
        graders = [role for role in self._roles if role.name.startswith(GRADER)]
        for roles in ([role for role in self._roles[1:] if role not in graders], graders, [self._coordinator]):
            for role in roles:
                if role.child is not None:
                    role.child.signal(signal.SIGTERM)
            while any(role.child for role in roles) and time.monotonic() < until_s:
                self._tend()
                self._look()
                time.sleep(LOOK_S)

    def _kill(self) -> None:
        """Whoever is left."""
        for role in self._roles:
            if role.child is not None:
                role.child.signal(signal.SIGKILL)
        for role in self._roles:
            while role.child is not None and role.child.poll() is None:
                time.sleep(LOOK_S)


def _words(role: Role, ended: Exit) -> str:
    """What the process said last."""
    last = next((line for line in reversed(ended.last_lines) if line.strip()), "it said nothing")
    return f"{ended.words or last}\nlog: logs/{role.name}.log"


def command_role(name: str, *arguments: str) -> Role:
    """A role that is a command of ours."""
    return Role(name=name, command=[sys.executable, "-m", "slipstream.cli.main", *arguments])


def roles_of(run_dir: Path, port: int, samplers: int, graders: int, lease_s: float) -> list[Role]:
    """The roles of a run on this machine, its coordinator at a port."""
    url = f"http://127.0.0.1:{port}"
    return [
        command_role(COORDINATOR, "coordinator", "--run-dir", str(run_dir), "--port", str(port), "--lease", f"{lease_s:g}"),
        command_role("learner", "learner", "--join", url, "--name", "learner", "--run-dir", str(run_dir)),
        *(command_role(name, "sampler", "--join", url, "--name", name) for name in (f"sampler-{index}" for index in range(samplers))),
        *(command_role(name, "grader", "--join", url, "--name", name) for name in (f"{GRADER}{index}" for index in range(graders))),
    ]


def free_port() -> int:
    """The coordinator's for as long as the run lives, so that it is found again after a restart."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
