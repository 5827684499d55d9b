"""Real runs of `slipstream train --on processes` on the tiny recipe, and real signals to their roles."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.runtime.runs import PATIENCE_S, TINY, finish, rows, sets, start

LEASE_S = 3.0


class Supervised:
    """One run; its roles are known by the supervisor's names."""

    def __init__(self, run_dir: Path, settings: Sequence[str], samplers: int = 2, *extra: str) -> None:
        self.run_dir = run_dir
        options = ("--on", "processes", "--samplers", str(samplers), "--lease", str(LEASE_S))
        self.process: subprocess.Popen[str] = start(run_dir, *(extra or (str(TINY), *sets(settings))), *options)

    def events(self, kind: str, **fields: object) -> list[dict]:
        found = [row for row in rows(self.run_dir / "events.jsonl") if row["kind"] == kind]
        return [row for row in found if all(row.get(name) == value for name, value in fields.items())]

    def steps(self) -> int:
        return len(rows(self.run_dir / "metrics.jsonl"))

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Until it holds; what the run says if it ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None, f"the run ended before {what}: {self.process.communicate()[1]}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
            time.sleep(0.005)

    def wait_steps(self, steps: int) -> None:
        self.wait(f"step {steps}", lambda: self.steps() >= steps)

    def pid(self, role: str) -> int:
        """Of the role's present process, which may be about to start."""
        self.wait(f"a start of {role}", lambda: len(self.events("role_started", name=role)) > len(self.events("role_died", name=role)))
        return self.events("role_started", name=role)[-1]["pid"]

    def send(self, role: str, number: signal.Signals) -> None:
        os.kill(self.pid(role), number)

    def kill(self, role: str) -> None:
        """SIGKILL, and wait until the supervisor has taken note of it."""
        deaths = len(self.events("role_died", name=role))
        self.send(role, signal.SIGKILL)
        self.wait(f"the death of {role}", lambda: len(self.events("role_died", name=role)) > deaths)

    def freeze(self, role: str) -> None:
        """SIGSTOP until the coordinator lets its lease end, then SIGCONT."""
        ended = len(self.events("lease_ended"))
        self.send(role, signal.SIGSTOP)
        self.wait(f"the end of the lease of {role}", lambda: len(self.events("lease_ended")) > ended)
        self.send(role, signal.SIGCONT)

    def close(self) -> None:
        """However the test ends: the roles end with their supervisor."""
        self.process.kill()
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.process.communicate()

    def finish(self, code: int = 0) -> str:
        return finish(self.process, code)
