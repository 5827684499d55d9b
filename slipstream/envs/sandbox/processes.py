"""How the processes of a cell come to be: the program behind a parent of its own, and the judge. Called by the keeper.

The program is forked before the judge's text is read, so there is nothing of it in its memory. Its parent, a process that does
nothing else, is there to be killed: a program that tries to end whoever runs it ends that, and is found out.
"""

import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.envs.sandbox import kernel, usage
from slipstream.envs.sandbox.records import Limits

CRASHED = 70  # exit status of a judge that failed by itself
JUDGE_MEMORY_FACTOR = 2
NICE = 5  # programs give way to keepers and judges, and to whoever waits for a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """User ids inside the cell; None leaves them as they are."""

    program: int | None
    judge: int | None
    apart: bool  # whether the program gets a process namespace of its own, where a user id does not keep its signals from the judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process and the near ends of its pipes; -1 where there is none."""

    pid: int  # of the program's parent, or of the judge
    note: int  # what it says
    program: int = 0  # pid of the program
    stdout: int = -1
    stderr: int = -1
    status: int = -1  # the parent's word: the program's exit status, or minus the signal that ended it
    channel: int = -1  # the judge's end of the channel
    inbox: int = -1
    stdin: int = -1
    go: int = -1

    def begin(self, text: bytes, stdin: bytes) -> None:
        """Give the waiting program what it is to run."""
        for descriptor, data in ((self.inbox, text), (self.stdin, stdin)):
            view = memoryview(data)
            done = 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], done)
            os.close(descriptor)
        os.close(self.go)


def start_program(body: Callable[..., None], limits: Limits, ids: Ids, scratch: str) -> Process:
    """Fork the program's parent, which forks the program; it waits for `Process.begin`."""
    ours, theirs = socket.socketpair()
    inbox, stdin = os.memfd_create("inbox"), os.memfd_create("stdin")
    go, out, err, note, status = os.pipe(), os.pipe(), os.pipe(), os.pipe(), os.pipe()
    pid = kernel.clone(kernel.CLONE_NEWPID) if ids.apart else os.fork()
    if pid == 0:
        os.setsid()
        _confine(limits, ids.program, scratch)
        child = os.fork()
        if child:
            _wait_for(child, status[1])
        os.setsid()
        kernel.set_dumpable(True)  # it may read its own /proc; nobody but its children is of its user and can be read
        channel, said = limits.open_files - 1, limits.open_files - 2
        for source, target in ((stdin, 0), (out[1], 1), (err[1], 2), (theirs.fileno(), channel), (note[1], said)):
            os.dup2(source, target)
        os.set_blocking(0, True)
        waiting, text = os.dup(go[0]), os.dup(inbox)
        os.closerange(3, min(waiting, text))
        os.closerange(max(waiting, text) + 1, said)
        _enter(body, _text_of(waiting, text), channel, said)
    for descriptor in (go[0], out[1], err[1], note[1], status[1]):
        os.close(descriptor)
    theirs.close()
    if os.read(status[0], 1) != b"p":
        raise RuntimeError("the program's parent did not start")
    return Process(
        pid=pid,
        program=usage.children(pid)[0],
        note=note[0],
        stdout=out[0],
        stderr=err[0],
        status=status[0],
        channel=ours.detach(),
        inbox=inbox,
        stdin=stdin,
        go=go[1],
    )


def start_judge(body: Callable[..., None], text: bytes, channel: int, limits: Limits, uid: int | None) -> Process:
    """Fork the judge, which holds its text from the start."""
    said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        memory = (limits.memory_mb << 20) * JUDGE_MEMORY_FACTOR + usage.address_space()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        _become(uid)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        keep = sorted((channel, said[1]))
        os.closerange(3, keep[0])
        os.closerange(keep[0] + 1, keep[1])
        os.closerange(keep[1] + 1, 4096)
        _enter(body, text, channel, said[1])
    os.close(said[1])
    return Process(pid=pid, note=said[0])


def _confine(limits: Limits, uid: int | None, scratch: str) -> None:
    """Limits, identity and place of the program; never to be undone by it."""
    bounds = {
        resource.RLIMIT_AS: (limits.memory_mb << 20) + usage.address_space(),
        resource.RLIMIT_CPU: int(limits.seconds) + 2,  # told by SIGXCPU; the kernel kills a second later
        resource.RLIMIT_FSIZE: limits.disk_mb << 20,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    os.nice(NICE)
    os.chdir(scratch)
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound + 1 if kind == resource.RLIMIT_CPU else bound))
    _become(uid)


def _become(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if kernel.supported():
        kernel.drop_capabilities()
        kernel.forbid_calls()
    kernel.set_dumpable(False)


def _wait_for(child: int, words: int) -> None:
    """The life of the program's parent."""
    os.dup2(words, 3)
    os.closerange(4, 4096)
    os.write(3, b"p")
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is None or ended.si_pid != child:
        os.wait()  # an orphan, which comes here where this is the first process of a namespace
    # the program is not waited for: if this process is being killed just now, the keeper finds it instead
    os.write(3, b"%d" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
    os._exit(0)


def _text_of(go: int, inbox: int) -> bytes:
    """Wait until the text is there and take it."""
    os.read(go, 1)
    text = os.pread(inbox, os.fstat(inbox).st_size, 0)
    os.close(go)
    os.close(inbox)
    return text


def _enter(body: Callable[..., None], text: bytes, channel: int, said: int) -> None:
    """The new process's own life begins here and never returns to the keeper's code."""
    for stream in range(3):
        mode = "r" if stream == 0 else "w"
        opened = os.fdopen(stream, mode, encoding="utf-8", errors="backslashreplace" if stream == 2 else "strict", closefd=False)
        name = ("stdin", "stdout", "stderr")[stream]
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    try:
        body(text, channel, said)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not run on into the code of the process this was forked from
        traceback.print_exc()
    finally:
        os._exit(CRASHED)
