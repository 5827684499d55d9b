"""A pool of warm worker processes, each job with a deadline that is kept by killing the worker. An actor: a thread a worker.

Workers are started as fresh interpreters in sessions of their own, so they inherit no thread, lock or open file of ours, and
signals to our process group do not reach them. A replaced worker warms up while the others serve. For verifiers: what a job
does is a function named by its import path, which takes and gives JSON values.
"""

import asyncio
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipstream.core.errors import RunFailed
from slipstream.envs.verifiers.pool_worker import READY

WARM_S = 120.0  # a worker that has not said that it is ready by then has failed
MEMORY_BYTES = 1 << 30
CHUNK = 1 << 16


class Ending(StrEnum):
    """How a job ended."""

    DONE = "done"
    TIMEOUT = "timeout"  # past its deadline; its worker was killed
    CRASHED = "crashed"  # its worker died, or none could be started


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a job."""

    ending: Ending
    value: Any = None  # of the function, where it is done
    detail: str = ""  # for people: why there is no value


class Pool:
    """Workers for one function. Use as a context manager; after `close` no process is left.

    Worked example: `with Pool("slipstream.envs.verifiers.math_grade:grade_job", workers=2) as pool: pool.run({...}, 5.0)`.
    """

    def __init__(self, target: str, *, workers: int, memory_bytes: int = MEMORY_BYTES) -> None:
        """Starts to warm `workers` processes for the function `target`, "module:function", each within `memory_bytes`."""
        self._target, self._memory_bytes = target, memory_bytes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._processes: set[_Process] = set()
        self._threads = [threading.Thread(target=self._serve, name=f"pool-{target}-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, payload: Any, deadline_s: float) -> "Future[Reply]":
        """Begin a job; its deadline counts from when a worker has it. Raises RunFailed after `close`."""
        job = _Job(payload=payload, deadline_s=deadline_s, future=Future())
        with self._lock:
            if self._closed:
                raise RunFailed(f"the pool of {self._target} is closed")
            self._jobs.put(job)
        return job.future

    def run(self, payload: Any, deadline_s: float) -> Reply:
        """Do a job and wait for it."""
        return self.submit(payload, deadline_s).result()

    async def arun(self, payload: Any, deadline_s: float) -> Reply:
        """Do a job without holding up the event loop."""
        return await asyncio.wrap_future(self.submit(payload, deadline_s))

    def close(self) -> None:
        """End every worker at once. Jobs that wait or run end as crashed. May be called again."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """The life of one place in the pool: a worker, its jobs one after the other, another worker when it is gone."""
        process = self._start()
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            if self._closed:
                job.future.set_result(Reply(ending=Ending.CRASHED, detail="the pool was closed"))
                continue
            reply = process.ask({"payload": job.payload, "deadline_s": job.deadline_s}, job.deadline_s)
            job.future.set_result(reply)
            if reply.ending is not Ending.DONE and not self._closed:
                self._end(process)
                process = self._start()
        self._end(process)

    def _start(self) -> "_Process":
        process = _Process(self._target, self._memory_bytes)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
        if closed:
            process.kill()
        process.warm()
        return process

    def _end(self, process: "_Process") -> None:
        process.kill()
        process.wait()
        with self._lock:
            self._processes.discard(process)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    payload: Any
    deadline_s: float
    future: "Future[Reply]"


class _Process:
    """One worker process and the pipes to it. Where it could not be started every question ends as crashed."""

    def __init__(self, target: str, memory_bytes: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `wait`
        self._problem = ""
        command = [sys.executable, "-m", "slipstream.envs.verifiers.pool_worker", target, str(memory_bytes)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        try:
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        except OSError as error:  # no memory, no process left: data for whoever has a job
            self._process, self._problem = None, f"no worker could be started: {error}"
            return
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)

    def warm(self) -> None:
        """Wait until it is ready; a worker that fails to start is noted, and told by the next `ask`."""
        if not self._problem and self._exchange(b"", WARM_S) != READY.strip():
            self._problem = f"the worker did not start: {self._last_words()}"

    def ask(self, request: Any, deadline_s: float) -> Reply:
        if self._problem:
            return Reply(ending=Ending.CRASHED, detail=self._problem)
        answer = self._exchange(json.dumps(request).encode() + b"\n", deadline_s)
        if isinstance(answer, Ending):
            late = answer is Ending.TIMEOUT
            return Reply(ending=answer, detail=f"no verdict in {deadline_s:g} s" if late else f"the worker died: {self._last_words()}")
        return Reply(ending=Ending.DONE, value=json.loads(answer))

    def kill(self) -> None:
        """End its whole session at once; its pipes stay until `wait`."""
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):  # gone by itself, not yet waited for
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        if self._process:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe
                pipe.close()
        self._errors.close()

    def _exchange(self, data: bytes, deadline_s: float) -> bytes | Ending:
        """Send a line and read a line, both before the deadline."""
        end = time.monotonic() + deadline_s
        received, poller = bytearray(), select.poll()
        poller.register(self._from, select.POLLIN)
        if data:
            poller.register(self._to, select.POLLOUT)
        while not received.endswith(b"\n"):
            ready = poller.poll(max(0.0, end - time.monotonic()) * 1000)
            if not ready:
                return Ending.TIMEOUT
            for descriptor, _ in ready:
                if descriptor == self._from:
                    chunk = os.read(self._from, CHUNK)
                    if not chunk:
                        return Ending.CRASHED
                    received += chunk
                    continue
                try:
                    data = data[os.write(self._to, data[:CHUNK]) :]
                except BrokenPipeError:
                    return Ending.CRASHED
                if not data:
                    poller.unregister(self._to)
        return bytes(received.strip())

    def _last_words(self) -> str:
        """The last line of its errors, or how it ended."""
        self.kill()
        code = self._process.wait() if self._process else None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit status {code}"
