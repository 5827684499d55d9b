"""Hostile programs in real cells: each is held, its end is told apart from others', and nothing of it is left."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.core.errors import RunFailed
from slipstream.envs.sandbox.records import Isolation, Stopped
from slipstream.envs.sandbox.sandbox import Sandbox
from tests.envs.sandbox.cells import PROGRAM, job, machine, quiet, told


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        box = Sandbox(bodies=(PROGRAM,), at_once=32)
    except RunFailed as error:
        pytest.skip(str(error))
    with box:
        yield box


@pytest.fixture(autouse=True)
def _nothing_left(box: Sandbox) -> Iterator[None]:
    before = machine()
    yield
    assert quiet(box)
    assert machine() == before


SIGHT = """
import json, os, socket
def refused(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return None
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
client = socket.create_connection(server.getsockname()); inside = client is not None
print(json.dumps({
    "exists": [path for path in PATHS if os.path.exists(path)],
    "environment": dict(os.environ),
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "write": [refused(lambda path=path: open(path + "/x", "w")) for path in ("/", "/usr", "/etc", "/packages", "/proc/sys")],
    "ours": refused(lambda: socket.create_connection(("127.0.0.1", PORT), 1)),
    "outside": refused(lambda: socket.create_connection(("192.0.2.1", 80), 1)),
    "keeper": [refused(lambda path=path: open(path, "rb").read(1)) for path in ("/proc/1/mem", "/proc/1/environ")],
    "kill": refused(lambda: os.kill(1, 0)),
    "memfd": refused(lambda: os.memfd_create("x")),
    "loopback": inside,
    "work": os.getcwd(),
}))
"""


def test_a_program_sees_nothing_of_ours(box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_SECRET", "secret")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"PATHS = {[str(secret), __file__, str(Path.home() / '.bashrc'), '/etc/shadow', f'/proc/{os.getpid()}']!r}"
        seen = told(box.run(job(f"{source}\nPORT = {server.getsockname()[1]}\n{SIGHT}")))
    assert seen["exists"] == [] or seen["exists"] == [f"/proc/{os.getpid()}"]
    assert "secret" not in str(seen["environment"])
    assert seen["environment"]["HOME"] == seen["work"]
    assert len(seen["pids"]) <= 3
    assert max(seen["pids"]) < 10
    assert all(seen["write"])
    assert seen["ours"]
    assert seen["outside"]
    assert all(seen["keeper"])
    assert seen["memfd"]
    assert seen["loopback"]


@pytest.mark.parametrize(
    ("source", "stopped", "note", "status"),
    [
        ("while True: pass", Stopped.DEADLINE, b"", None),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", None, b"", None),
        ("x = b'1' * (8 << 30)", Stopped.NO, b"memory", 1),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", Stopped.NO, b"memory", 1),
        (
            "import mmap, os, time\nfor n in range(9):\n    if not os.fork():\n        m = mmap.mmap(-1, 100 << 20)\n"
            "        m.write(b'x' * (100 << 20))\n        break\ntime.sleep(60)",
            Stopped.MEMORY,
            b"",
            None,
        ),
        ("f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))", Stopped.NO, b"disk", 1),
        ("n = 0\nwhile True:\n    n += 1\n    open(f'{n}', 'wb').write(bytes(1 << 20))", Stopped.NO, b"disk", 1),
        ("n = 0\nwhile True:\n    n += 1\n    open(f'{n}', 'w').close()", Stopped.NO, b"disk", 1),
        ("import sys\nwhile True: sys.stdout.write('spam' * 100000)", Stopped.FLOOD, b"", None),
        ("import os\nos.kill(os.getpid(), 15)", Stopped.NO, b"", -15),
        ("import os\nos.killpg(os.getpgrp(), 9)", Stopped.NO, b"", -9),
        ("import ctypes\nctypes.string_at(0)", Stopped.NO, b"", -11),
        ("import sys\nsys.exit(3)", Stopped.NO, b"", 3),
        ("import nowhere", Stopped.NO, b"missing_module", 1),
        ("def f(:", Stopped.NO, b"syntax", 1),
    ],
    ids=[
        "loop",
        "forks",
        "memory",
        "memory-slow",
        "memory-shared",
        "file",
        "files",
        "inodes",
        "flood",
        "term",
        "group",
        "segv",
        "exit",
        "module",
        "syntax",
    ],
)
def test_ends_are_told_apart(box: Sandbox, source: str, stopped: Stopped | None, note: bytes, status: int | None) -> None:
    """A fork bomb may meet its deadline or, on a slow machine, the watch over processes first."""
    ended = box.run(job(source, seconds=1.5, memory_mb=256, flood_bytes=1 << 24, processes=48))
    assert (ended.stopped, ended.note.split(b" ")[0], ended.exit_status) == (
        stopped if stopped is not None else ended.stopped,
        note,
        status,
    )
    assert stopped is not None or ended.stopped in (Stopped.DEADLINE, Stopped.PROCESSES, Stopped.MEMORY)
    assert len(ended.stdout) <= 1 << 16


DAEMON = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 300)
        time.sleep(600)
    os._exit(0)
print("done")
"""


def test_daemons_end_with_their_program(box: Sandbox) -> None:
    ended = box.run(job(DAEMON))
    assert (ended.stdout, ended.exit_status, ended.stopped) == (b"done\n", 0, Stopped.NO)


def test_whoever_runs_a_program_survives_it(box: Sandbox) -> None:
    """Where processes have a user of their own, a program that kills its parent kills a decoy, and that is seen."""
    killed = box.run(job("import os\nos.kill(os.getppid(), 9)\nprint('on')"))
    assert killed.stdout == b"on\n"
    assert killed.killed_parent or box.confinement.isolation is Isolation.USER
    stopped = box.run(job("import os\nos.kill(os.getppid(), 19)\nprint('on')"))
    assert (stopped.exit_status, stopped.killed_parent) == (0, False)
    every = box.run(job("import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('on')"))
    assert every.exit_status in (0, -9)


def test_standard_streams_are_as_a_program_expects(box: Sandbox) -> None:
    """Input is a stream of its own; output of any bytes comes back, cut where it is long."""
    echoed = box.run(job("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())\nsys.stderr.write('e')", stdin=bytes(range(256))))
    assert (echoed.stdout, echoed.stderr, echoed.exit_status) == (bytes(range(256)), b"e", 0)
    long = box.run(job("print('x' * 10**7)"))
    assert (len(long.stdout), long.exit_status) == (1 << 16, 0)
    closed = box.run(job("import os\nos.close(1)\nos.close(2)"))
    assert closed.exit_status == 0


def test_thirty_two_at_once_do_not_meet(box: Sandbox) -> None:
    """Each has its own files, processes and network; all end as they would alone."""
    source = """
import os, socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 4444)); s.listen()
open("mine", "x").write(input())
time.sleep(0.2)
assert os.listdir(".") == ["mine"]
print(open("mine").read())
"""
    with ThreadPoolExecutor(32) as threads:
        ended = list(threads.map(lambda n: box.run(job(source, stdin=b"%d\n" % n, seconds=20.0)), range(32)))
    assert [one.stdout for one in ended] == [b"%d\n" % n for n in range(32)], [one.stderr for one in ended if one.exit_status]
