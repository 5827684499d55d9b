"""What a cell may use, what it is asked to run, how it ended, and what keeps it in. Plain data; the launcher imports this too."""

from dataclasses import dataclass
from enum import StrEnum


class Stopped(StrEnum):
    """Why the cell's keeper ended the program before it ended by itself."""

    NO = ""
    DEADLINE = "deadline"  # the program's own time is used up
    MEMORY = "memory"  # its processes together hold more than they may
    PROCESSES = "processes"  # more of them than `Limits.processes`, where the kernel does not hold that limit
    FLOOD = "flood"  # it wrote more than `Limits.flood_bytes`
    JUDGE = "judge"  # the judge did not answer in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one cell. A process that asks for more is refused; where that is not possible the cell is ended."""

    seconds: float = 10.0  # of wall-clock time, without the time spent waiting for a processor that others use
    memory_mb: int = 1024  # address space of each process, and memory of all together, beyond the address space of an idle interpreter
    disk_mb: int = 64  # the scratch directory as a whole, and each file
    files: int = 16_384  # files and directories in the scratch directory
    processes: int = 280  # processes and threads alive at once
    open_files: int = 256  # descriptors of each process
    keep_bytes: int = 1 << 16  # of each of the two outputs; the rest is read and thrown away
    flood_bytes: int = 1 << 28  # of both outputs together; past it the cell is ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell. The program's process exists before a byte of the judge's text is in the cell, so it can not hold any."""

    program: str  # "module:function" of those given to the sandbox; called as function(inbox, channel) in the untrusted process
    program_text: bytes  # what the program's function reads
    judge: str = ""  # the same for a second, trusted process at the other end of the channel; "" for none
    judge_text: bytes = b""
    stdin: bytes = b""  # standard input of the program
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What was seen from outside the program. Of these the program can set its output, its note and its exit status."""

    verdict: bytes  # what the judge wrote; empty where there is none
    note: bytes  # what the program's function wrote about itself; never proof of anything
    exit_status: int | None  # of the program; minus the signal's number where one killed it; None where it was still running
    killed_parent: bool  # the program's parent, a process there for nothing else, did not live to see the end
    stopped: Stopped
    stdout: bytes  # the first `Limits.keep_bytes`
    stderr: bytes
    seconds: float  # wall-clock time from start to end
    cpu_seconds: float  # of the processes that were alive at the end and the children they waited for


class Isolation(StrEnum):
    """What keeps a program in, strongest first."""

    ROOT = "root"  # namespaces made by root, each cell with user ids of its own
    USER = "user"  # namespaces made by an ordinary user
    NONE = "none"  # a session, limits and a scratch directory only: files and network of the machine are open to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What is in force on this machine; `slipstream doctor` prints it."""

    isolation: Isolation
    problems: tuple[str, ...]  # what was tried and refused, a sentence each
    packages: tuple[str, ...]  # packages beyond the standard library that programs can import

    def lines(self) -> tuple[str, ...]:
        """For people."""
        told = {
            Isolation.ROOT: "own user, process, network, file and IPC namespaces; user ids that nobody has; no capability",
            Isolation.USER: "own user, process, network, file and IPC namespaces, made without privileges; no capability",
            Isolation.NONE: "NONE beyond limits and a session: programs can read this user's files and use the network",
        }
        packages = f"packages: {', '.join(self.packages) or 'none'}"
        return (f"isolation of programs: {told[self.isolation]}", packages, *self.problems)
