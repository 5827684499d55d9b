"""A cell's keeper: the first process of a cell. It starts program and judge, watches them, reports, and its end is theirs.

It runs trusted code only: its pid namespace's signals do not reach it, and the program cannot read it. Called by `launcher`.
"""

import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from slipstream.envs.sandbox import usage
from slipstream.envs.sandbox.processes import Ids, Process, start_judge, start_program
from slipstream.envs.sandbox.records import Limits, Stopped

TICK_MS = 20
WATCH_S = 0.1  # between two looks at the memory of all
WATCH_REST = 10  # so many times longer than a look, where there are many processes to look at
MANY = 16  # processes of a cell that compete with each other for processors
SPARE = 8  # processes of the cell that are not the program's
LINGER_S = 0.3  # for the program to end by itself once its judge has
JUDGE_S = 2.0  # for the judge to answer once time is up
LOAD_FACTOR = 4.0  # time waiting for a processor is given back, up to so many times the limit
CHUNK = 1 << 16
NOTE_BYTES = 4096
VERDICT_BYTES = 1 << 16

Body = Callable[..., None]


def keep(job: socket.socket, bodies: Mapping[str, Body], ids: Ids, scratch_of: Callable[[Limits], str]) -> None:
    """Run the one job that comes in through `job` and send back the report. Then the caller ends this process."""
    try:
        header = json.loads(_receive(job, struct.unpack("=I", _receive(job, 4))[0]))
        limits = Limits(**header["limits"])
        program = start_program(bodies[header["program"]], limits, ids, scratch_of(limits))
        text, stdin, judge_text = (_receive(job, header[name]) for name in ("program_text", "stdin", "judge_text"))
        program.begin(text, stdin)
        judge = start_judge(bodies[header["judge"]], judge_text, program.channel, limits, ids.judge) if header["judge"] else None
        os.close(program.channel)
    except ConnectionError:
        return
    report = _Watch(job=job, program=program, judge=judge, limits=limits).run()
    parts = [report.pop(name) for name in ("verdict", "note", "stdout", "stderr")]
    head = json.dumps({**report, "lengths": [len(part) for part in parts]}).encode()
    job.setblocking(True)
    try:
        job.sendall(b"".join([struct.pack("=I", len(head)), head, *parts]))
    except ConnectionError:
        return


def _receive(job: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = job.recv(min(count - len(received), 1 << 20))
        if not chunk:
            raise ConnectionResetError("the caller is gone")
        received += chunk
    return bytes(received)


@dataclass(kw_only=True)
class _Watch:
    """The loop round one job's processes: a state, ended by `finished`."""

    job: socket.socket
    program: Process
    judge: Process | None
    limits: Limits
    started: float = field(default_factory=time.monotonic)
    kept: dict[int, bytearray] = field(default_factory=dict[int, bytearray])  # by descriptor
    written: int = 0
    status: int | None = None
    told_at: float | None = None  # when the judge was asked to come to an end
    over_at: float | None = None  # when judge or program ended; the other has until `LINGER_S` after
    judge_failed: bool = False
    killed_parent: bool = False
    parent_gone: bool = False
    stopped: Stopped = Stopped.NO
    finished: bool = False
    looked_at: float = 0.0

    def run(self) -> dict:
        program, judge = self.program, self.judge
        caps = {program.stdout: self.limits.keep_bytes, program.stderr: self.limits.keep_bytes, program.note: NOTE_BYTES}
        caps |= {program.status: NOTE_BYTES} | ({judge.note: VERDICT_BYTES} if judge else {})
        poller = select.poll()
        for descriptor in caps:
            os.set_blocking(descriptor, False)
            self.kept[descriptor] = bytearray()
            poller.register(descriptor, select.POLLIN)
        poller.register(self.job, select.POLLRDHUP)
        while not self.finished:
            for descriptor, _ in poller.poll(TICK_MS):
                if descriptor == self.job.fileno():
                    os._exit(1)  # the caller is gone: nobody wants the rest
                if self._read(descriptor, caps[descriptor]):
                    poller.unregister(descriptor)
                    self._closed(descriptor)
            self._tick()
        for descriptor in (program.stdout, program.stderr, program.note, program.status):
            if self._read(descriptor, caps[descriptor]):
                self._closed(descriptor)
        return {
            "verdict": bytes(self.kept[judge.note]) if judge else b"",
            "note": bytes(self.kept[program.note]),
            "stdout": bytes(self.kept[program.stdout]),
            "stderr": bytes(self.kept[program.stderr]),
            "exit_status": self.status,
            "killed_parent": self.killed_parent,
            "stopped": self.stopped,
            "seconds": time.monotonic() - self.started,
            "cpu_seconds": usage.cpu_seconds(),
        }

    def _read(self, descriptor: int, cap: int) -> bool:
        """Take what is there, keep up to the cap; True at the end of the stream."""
        for _ in range(64):
            try:
                chunk = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            kept = self.kept[descriptor]
            kept += chunk[: max(0, cap - len(kept))]
            self.written += len(chunk)
        return False

    def _closed(self, descriptor: int) -> None:
        if self.judge and descriptor == self.judge.note:
            self.judge_failed = os.waitstatus_to_exitcode(os.waitpid(self.judge.pid, 0)[1]) != 0
            self.over_at = time.monotonic()
            self.finished |= not self.judge_failed or self.status is not None
        elif descriptor == self.program.status:
            self.killed_parent = not self.kept[descriptor]

    def _tick(self) -> None:
        now = time.monotonic()
        self._follow_program(now)
        if self.finished:
            return
        if self.over_at is not None:
            if now > self.over_at + LINGER_S:
                self._linger_over(now)
        elif self.told_at is not None:
            if now > self.told_at + JUDGE_S:
                self._stop(Stopped.JUDGE)
        elif self.written > self.limits.flood_bytes:
            self._stop(Stopped.FLOOD)
        elif self._late(now):
            self._time_is_up(now)
        elif now > self.looked_at + WATCH_S:
            if len(usage.pids()) > self.limits.processes + SPARE:
                self._stop(Stopped.PROCESSES)
                return
            if usage.too_much_memory((self.limits.memory_mb << 20) + usage.address_space(), except_for=self._trusted()):
                self._stop(Stopped.MEMORY)
            done = time.monotonic()
            self.looked_at = done + (done - now) * WATCH_REST

    def _follow_program(self, now: float) -> None:
        """Learn of the program's end from its parent, or directly where the parent is gone."""
        word = self.kept[self.program.status]
        ended = int(word) if word else None
        for pid, status in self._reap():
            self.parent_gone |= pid == self.program.pid
            ended = os.waitstatus_to_exitcode(status) if pid == self.program.program else ended
        if not self.parent_gone and ended is None:
            os.kill(self.program.pid, signal.SIGCONT)  # the program may have stopped it
        if ended is not None and self.status is None:
            self.status = ended
            self.finished |= self.judge is None or self.judge_failed
            self.over_at = now if self.over_at is None else self.over_at

    def _reap(self) -> Iterator[tuple[int, int]]:
        """Those that ended, orphans of the program among them; the judge is waited for where its verdict ends."""
        while True:
            try:
                waited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if waited is None or (self.judge and waited.si_pid == self.judge.pid):
                return
            yield os.waitpid(waited.si_pid, 0)

    def _linger_over(self, now: float) -> None:
        if self.judge is None or self.judge_failed:
            self.finished = True
        elif self.told_at is None:  # the program is gone and the judge may wait for it, kept by a child that holds the channel
            os.kill(self.judge.pid, signal.SIGUSR1)
            self.told_at = now
        elif now > self.told_at + JUDGE_S:
            self._stop(Stopped.JUDGE)

    def _late(self, now: float) -> bool:
        """Whether the time is up. Waiting for a processor does not count, unless the program's own processes are what it waits for."""
        gone, limit = now - self.started, self.limits.seconds
        if gone < limit:
            return False
        if len(usage.pids()) > MANY:
            return True
        waited = usage.seconds_waiting(self.program.program) + (usage.seconds_waiting(self.judge.pid) if self.judge else 0.0)
        return gone - waited > limit or gone > LOAD_FACTOR * limit or usage.cpu_seconds() > limit

    def _time_is_up(self, now: float) -> None:
        if self.judge is None:
            self._stop(Stopped.DEADLINE)
        else:
            os.kill(self.judge.pid, signal.SIGUSR1)
            self.stopped, self.told_at = Stopped.DEADLINE, now

    def _trusted(self) -> set[int]:
        return {os.getpid(), self.program.pid, self.judge.pid if self.judge else 0}

    def _stop(self, reason: Stopped) -> None:
        self.stopped, self.finished = reason, True
