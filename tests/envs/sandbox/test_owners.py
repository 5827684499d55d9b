"""When the sandbox's own processes end, or the machine allows less: nothing is left, nothing hangs, nothing runs unprotected unasked."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.core.errors import RunFailed
from slipstream.envs.sandbox.records import Isolation, Stopped
from slipstream.envs.sandbox.sandbox import Sandbox
from tests.envs.sandbox.cells import PROGRAM, descendants, job, machine, quiet

FOREVER = "import os, time\nif os.fork(): os.setsid\ntime.sleep(600)"
UNPRIVILEGED = "-all,+setfcap,+setuid,+setgid"  # what root of an ordinary container has, and no more
setpriv = pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to try with less")


def isolated() -> Sandbox:
    try:
        return Sandbox(bodies=(PROGRAM,), at_once=4)
    except RunFailed as error:
        pytest.skip(str(error))


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll for something that another process brings about."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_closing_ends_what_runs() -> None:
    before = machine()
    box = isolated()
    with box:
        running = box.submit(job(FOREVER, seconds=100.0))
        wait_until(lambda: len(descendants(box.pid)) >= 3)
        waiting = [box.submit(job("print(1)")) for _ in range(8)]
    with pytest.raises(RunFailed):
        running.result(20)
    assert all(one.cancelled() or one.exception() or one.result() for one in waiting)
    assert machine() == before
    with pytest.raises(RunFailed, match="closed"):
        box.run(job("print(1)"))


def test_a_launcher_that_dies_is_replaced_and_takes_its_cells_along() -> None:
    with isolated() as box:
        running = box.submit(job(FOREVER, seconds=100.0))
        wait_until(lambda: len(descendants(box.pid)) >= 3)
        cells, launcher = descendants(box.pid), box.pid
        os.kill(launcher, signal.SIGKILL)
        with pytest.raises(RunFailed):
            running.result(20)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in cells))
        assert box.run(job("print(1)")).stdout == b"1\n"
        assert box.pid != launcher


def test_nothing_outlives_an_owner_that_is_killed() -> None:
    code = f"""
import sys, threading, time
from slipstream.envs.sandbox.sandbox import Sandbox
from tests.envs.sandbox.cells import PROGRAM, job
box = Sandbox(bodies=(PROGRAM,))
box.submit(job({FOREVER!r}, seconds=100.0))
print(box.pid, flush=True)
time.sleep(600)
"""
    isolated().close()
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    with owner:
        assert owner.stdout
        launcher = int(owner.stdout.readline())
        wait_until(lambda: len(descendants(launcher)) >= 3)
        every = [launcher, *descendants(launcher)]
        owner.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in every))


def test_many_wait_for_few_places() -> None:
    async def run(box: Sandbox) -> list[bytes]:
        return [ended.stdout for ended in await asyncio.gather(*(box.arun(job(f"print({n})", seconds=20.0)) for n in range(40)))]

    with isolated() as box:
        assert asyncio.run(run(box)) == [b"%d\n" % n for n in range(40)]
        assert quiet(box)


def run_with_less(capabilities: str, code: str) -> str:
    """Run Python as a root with these capabilities only."""
    lines = f"from tests.envs.sandbox.cells import *\nfrom slipstream.core.errors import RunFailed\n{code}"
    command = ["setpriv", f"--bounding-set={capabilities}", sys.executable, "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    return done.stdout


@setpriv
def test_an_ordinary_user_gets_the_same_walls() -> None:
    """Its programs share its user id with the judge; a process namespace of their own keeps their signals in."""
    seen = run_with_less(
        UNPRIVILEGED,
        """
with Sandbox(bodies=(PROGRAM,)) as box:
    print(box.confinement.isolation)
    print(box.run(job("import os\\nprint(os.path.exists('/etc/shadow'), os.getuid() != 0, os.environ.get('PATH'))")).stdout)
    print(box.run(job("import os\\nfor pid in range(1, 40):\\n    if pid != os.getpid():\\n        try: os.kill(pid, 9)\\n"
                      "        except OSError: pass\\nprint('on')")).stdout)
    bomb = box.run(job("import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass", seconds=1.5, processes=48))
    print(bomb.stopped != "", quiet(box))
""",
    )
    assert seen.splitlines() == [Isolation.USER, "b'False True /usr/bin:/bin\\n'", "b'on\\n'", "True True"]


@setpriv
def test_without_isolation_programs_run_only_when_asked_for() -> None:
    seen = run_with_less(
        "-all",
        """
try:
    Sandbox(bodies=(PROGRAM,))
except RunFailed as error:
    print(error)
before = machine()
with Sandbox(bodies=(PROGRAM,), weak=True) as box:
    print(box.confinement.isolation)
    print(box.run(job("open('x', 'w').write('1')\\nimport os\\nos.chmod('.', 0)\\nprint(2)")).stdout)
    daemon = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0: time.sleep(600)\\n    os._exit(0)"
    print(box.run(job(daemon)).exit_status, box.run(job("while True: pass", seconds=0.5)).stopped, quiet(box))
print(machine() == before)
""",
    )
    refusal, *rest = seen.splitlines()
    assert "allows no isolation" in refusal
    assert rest == [Isolation.NONE, "b'2\\n'", f"0 {Stopped.DEADLINE} True", "True"]
