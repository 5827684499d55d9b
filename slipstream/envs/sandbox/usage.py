"""What the processes of a cell use, read from /proc. Called by the keeper."""

import os
from collections.abc import Iterable, Set

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """Of all processes alive and of the children they have waited for."""
    total = 0
    for pid in pids():
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        total += sum(int(ticks) for ticks in fields[11:15])
    return total / _TICKS


def seconds_waiting(pid: int) -> float:
    """How long the main thread of a process was ready to run and had no processor."""
    fields = _read(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def too_much_memory(limit_bytes: int, except_for: Set[int]) -> bool:
    """Whether all processes together hold more. What they share counts once; telling it apart is slow, so only when needed."""
    others = [pid for pid in pids() if pid not in except_for]
    if sum(_resident(pid) for pid in others) <= limit_bytes:
        return False
    return sum(_proportional(pid) for pid in others) > limit_bytes


def address_space() -> int:
    """Bytes of this process's; what an interpreter has before it runs anything."""
    fields = _read("/proc/self/statm").split()
    return int(fields[0]) * _PAGE if fields else 0


def children(pid: int) -> list[int]:
    return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]


def pids() -> list[int]:
    """Of this process and every one below it; the first process of a namespace sees no others."""
    return every_pid() if os.getpid() == 1 else [os.getpid(), *descendants(every_pid())]


def every_pid() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(every: Iterable[int]) -> list[int]:
    """The processes below this one, children before their own."""
    children: dict[int, list[int]] = {}
    for pid in every:
        if fields := _read(f"/proc/{pid}/stat").rpartition(b")")[2].split():
            children.setdefault(int(fields[1]), []).append(pid)
    found = list(children.get(os.getpid(), []))
    for pid in found:  # grows as it goes
        found += children.get(pid, [])
    return found


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _proportional(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> bytes:
    """The file, or nothing where its process has just ended."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
