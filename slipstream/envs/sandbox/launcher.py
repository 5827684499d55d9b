"""The launcher: a small process that holds nothing of ours, sits in a minimal root and forks a cell for every job it is handed.

Started by `sandbox`, as `main`, with the standard library only; one thread. It owns the cells: when it ends they end, and it ends
when its owner does. A job is a socket; the launcher keeps its end open until the last process of the cell is gone, so that the
end of the stream tells the owner just that.
"""

import array
import gc
import importlib
import json
import os
import select
import site
import socket
import sys
import tempfile
import traceback
from dataclasses import dataclass

from slipstream.envs.sandbox.keeper import Body, keep
from slipstream.envs.sandbox.processes import Ids
from slipstream.envs.sandbox.records import Isolation
from slipstream.envs.sandbox.root import PACKAGES
from slipstream.envs.sandbox.walls import fork_cell, fork_weak, isolate, remove, scratch_on_tmpfs

WARM = ("typing", "collections", "re", "math", "random", "json", "heapq", "bisect", "itertools", "functools", "string", "operator")


def main() -> None:
    """`settings` as JSON on the command line: bodies, packages, weak; the control socket is descriptor 0."""
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(0))
    bodies = {name: _load(name) for name in settings["bodies"]}
    for name in WARM:
        importlib.import_module(name)
    site.setquit()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    isolation, problems = isolate(settings["packages"], settings["weak"])
    sys.path[:] = [path for path in sys.path if path not in settings["ours"]]
    sys.path += [PACKAGES] if isolation is not Isolation.NONE else settings["package_paths"]
    problems += _warm(settings["modules"])
    control.sendall(json.dumps({"isolation": isolation, "problems": problems}).encode() + b"\n")
    if isolation is not Isolation.NONE or settings["weak"]:
        gc.collect()
        gc.freeze()
        _Launcher(control, bodies, isolation).serve()


def _warm(modules: list[str]) -> list[str]:
    """Import the packages here, once, because a cell would need a second for some; which cannot be, and why."""
    problems = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            problems.append(f"package {name} cannot be imported: {error}")
    return problems


def _load(name: str) -> Body:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    pid: int  # of its keeper
    slot: int  # which user ids it has
    job: socket.socket
    scratch: str  # a directory to remove, "" where its namespace takes it along


class _Launcher:
    """The loop: takes jobs, forks cells, waits for their ends."""

    def __init__(self, control: socket.socket, bodies: dict[str, Body], isolation: Isolation) -> None:
        self._control, self._bodies, self._isolation = control, bodies, isolation
        self._cells: dict[int, _Cell] = {}  # by the pidfd of the keeper
        self._slots: set[int] = set()

    def serve(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor != self._control.fileno():
                    poller.unregister(descriptor)
                    self._bury(descriptor)
                elif (job := self._take()) is None:
                    return
                elif (cell := self._begin(job)) is not None:
                    poller.register(cell, select.POLLIN)

    def _take(self) -> socket.socket | None:
        """The next job; None when the owner is gone."""
        try:
            data, ancillary, _, _ = self._control.recvmsg(1, socket.CMSG_SPACE(4))
        except ConnectionError:
            return None
        if not data:
            return None
        return socket.socket(fileno=array.array("i", ancillary[0][2])[0])

    def _begin(self, job: socket.socket) -> int | None:
        """Fork a cell; returns the pidfd of its keeper, None where the machine has no room for it now."""
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        scratch = "" if self._isolation is not Isolation.NONE else tempfile.mkdtemp(prefix="slipstream-cell-")
        try:
            pid = self._fork(job, slot, scratch)
        except OSError:
            traceback.print_exc()
            job.close()
            return None
        self._slots.add(slot)
        descriptor = os.pidfd_open(pid)
        self._cells[descriptor] = _Cell(pid=pid, slot=slot, job=job, scratch=scratch)
        return descriptor

    def _fork(self, job: socket.socket, slot: int, scratch: str) -> int:
        if self._isolation is Isolation.NONE:
            ids = Ids(program=None, judge=None, apart=False)
            return fork_weak([job.fileno()], lambda: keep(job, self._bodies, ids, lambda _: scratch))
        root = self._isolation is Isolation.ROOT
        ids = Ids(program=1 if root else None, judge=2 if root else None, apart=not root)
        return fork_cell(self._isolation, slot, [job.fileno()], lambda: keep(job, self._bodies, ids, scratch_on_tmpfs))

    def _bury(self, descriptor: int) -> None:
        """A keeper has ended, and with it every process of its namespace; say so by closing the job."""
        cell = self._cells.pop(descriptor)
        os.waitpid(cell.pid, 0)
        os.close(descriptor)
        if cell.scratch:
            remove(cell.scratch)
        self._slots.discard(cell.slot)
        cell.job.close()
