"""The way in: hand a job to the launcher, get back how it ended, blocking or not. An actor with one launcher process."""

import array
import asyncio
import functools
import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import slipstream
from slipstream.core.errors import RunFailed
from slipstream.envs.sandbox.records import Confinement, Ended, Isolation, Job, Stopped

PACKAGES = ("numpy", "sortedcontainers")
START_S = 60.0  # for the launcher to say what isolation there is
GRACE_S = 30.0  # past the longest that a cell may take by its own clock
_CLOCK = 6.0  # a cell ends by its own clock before so many times its limit
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # a program's verdict does not depend on the order of its sets
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # threads take address space, which is bounded
    "OMP_NUM_THREADS": "1",
}


class Sandbox:
    """Cells for untrusted programs. Use as a context manager; after `close` no process is left.

    Raises RunFailed at the start where no isolation is possible, unless `weak` allows to run without.
    Worked example: `with Sandbox(bodies=(BODY,)) as box: box.run(Job(program=BODY, program_text=b"...", limits=Limits()))`.
    """

    def __init__(self, *, bodies: Sequence[str], packages: Sequence[str] = PACKAGES, at_once: int = 2, weak: bool = False) -> None:
        """`bodies`: "module:function" of what may run in a cell. `packages`: modules that programs can import, where they exist."""
        self._bodies, self._weak = tuple(bodies), weak
        self._found = _package_paths(packages)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - of the launcher; closed in `close`
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="sandbox")
        self._process, self._control, self.confinement = self._start()

    @property
    def pid(self) -> int:
        """Of the launcher, whose children are the cells."""
        return self._process.pid

    def run(self, job: Job) -> Ended:
        """Run a job and wait until its last process is gone. Raises RunFailed when launcher or cell fail: no verdict on a program."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            ours.settimeout(job.limits.seconds * _CLOCK + GRACE_S)
            try:
                ours.sendall(_packed(job))
                report = _until_end(ours)
            except OSError as error:  # TimeoutError among them
                raise RunFailed(f"sandbox: a cell does not answer: {error}; {self._last_words()}") from error
        if not report:
            raise RunFailed(f"sandbox: a cell ended without a report: {self._last_words()}")
        return _unpacked(report)

    def submit(self, job: Job) -> "Future[Ended]":
        """Begin a job as soon as one of the `at_once` places is free."""
        return self._threads.submit(self.run, job)

    async def arun(self, job: Job) -> Ended:
        """Run a job without holding up the event loop; hundreds may wait."""
        return await asyncio.wrap_future(self.submit(job))

    def close(self) -> None:
        """End everything at once. May be called again."""
        with self._lock:
            self._closed = True
            self._end()
        self._threads.shutdown(cancel_futures=True)
        self._words.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_over(self, job: socket.socket) -> None:
        """Give the launcher its end of a job; a launcher that has died is replaced."""
        message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [job.fileno()]))]
        with self._lock:
            if self._closed:
                raise RunFailed("sandbox: closed")
            try:
                self._control.sendmsg([b"j"], message)
            except OSError:
                self._end()
                self._process, self._control, self.confinement = self._start()
                self._control.sendmsg([b"j"], message)

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket, Confinement]:
        ours = str(Path(slipstream.__file__).resolve().parents[1])
        names = tuple(name.removesuffix(".py") for name in self._found if not name.endswith(".libs"))
        settings = {
            "bodies": self._bodies,
            "packages": self._found,
            "modules": names,
            "package_paths": sorted({str(Path(path).parent) for path in self._found.values()}),
            "weak": self._weak,
            "ours": [ours],
        }
        code = f"import sys; sys.path.insert(0, {ours!r}); from slipstream.envs.sandbox.launcher import main; main()"
        command = [os.path.realpath(sys.executable), "-S", "-s", "-P", "-B", "-c", code, json.dumps(settings)]
        control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                command, env=_ENVIRONMENT, cwd="/", stdin=theirs.fileno(), stderr=self._words, start_new_session=True
            )
        control.settimeout(START_S)
        try:
            said = json.loads(_line(control))
        except (OSError, ValueError) as error:
            control.close()
            process.kill()
            process.wait()
            raise RunFailed(f"sandbox: the launcher did not start: {self._last_words() or error}") from error
        confinement = Confinement(isolation=Isolation(said["isolation"]), problems=tuple(said["problems"]), packages=names)
        if confinement.isolation is Isolation.NONE and not self._weak:
            control.close()
            process.wait()
            raise RunFailed(
                f"sandbox: this machine allows no isolation of programs ({'; '.join(confinement.problems)}); see `slipstream doctor`"
            )
        return process, control, confinement

    def _end(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-6:]) if lines else ""


@functools.cache
def _module_path(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent if found.submodule_search_locations else Path(found.origin)


def _package_paths(names: Sequence[str]) -> dict[str, str]:
    """Where packages are, and the shared libraries that wheels put beside them."""
    found = {path.name: path for name in names if (path := _module_path(name))}
    libraries = {f"{name}.libs": path.parent / f"{name}.libs" for name, path in found.items()}
    return {name: str(path) for name, path in (found | libraries).items() if path.exists()}


def _packed(job: Job) -> bytes:
    texts = {"program_text": job.program_text, "stdin": job.stdin, "judge_text": job.judge_text}
    header: dict[str, Any] = {name: len(text) for name, text in texts.items()}
    header |= {"program": job.program, "judge": job.judge, "limits": asdict(job.limits)}
    head = json.dumps(header).encode()
    return b"".join([struct.pack("=I", len(head)), head, *texts.values()])


def _unpacked(report: bytes) -> Ended:
    start = 4 + struct.unpack_from("=I", report)[0]
    header = json.loads(report[4:start])
    parts = []
    for length in header.pop("lengths"):
        parts.append(report[start : start + length])
        start += length
    verdict, note, stdout, stderr = parts
    header["stopped"] = Stopped(header["stopped"])
    return Ended(verdict=verdict, note=note, stdout=stdout, stderr=stderr, **header)


def _until_end(stream: socket.socket) -> bytes:
    received = bytearray()
    while chunk := stream.recv(1 << 20):
        received += chunk
    return bytes(received)


def _line(stream: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = stream.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError("it ended")
        received += chunk
    return bytes(received)
