"""The walls of cells: which namespaces this machine allows, and processes with namespaces of their own. Called by the launcher."""

import contextlib
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Mapping

from slipstream.envs.sandbox import kernel, usage
from slipstream.envs.sandbox.records import Isolation, Limits
from slipstream.envs.sandbox.root import enter_minimal_root, open_trees

FIRST_ID = 0x60000000  # of the user ids for cells made by root: beyond those of any system's accounts
IDS_PER_CELL = 4
INSIDE = 1000  # the one user id inside where an ordinary user makes the cells
_WAS_ROOT = 1  # what root is called in the namespace of a launcher that root started without its privileges
_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS


def isolate(packages: Mapping[str, str], weak: bool) -> tuple[Isolation, list[str]]:
    """The strongest that this machine allows, and why not a stronger one. Tried in children first: a failure leaves things half done."""
    problems: list[str] = []
    if not kernel.supported():
        return Isolation.NONE, ["namespaces: unknown kind of machine"]
    for isolation in (Isolation.ROOT, Isolation.USER) if os.getuid() == 0 else (Isolation.USER,):
        if problem := _trial(isolation, packages):
            problems.append(f"{isolation} namespaces: {problem}")
            continue
        _enter(isolation, packages)
        return isolation, problems
    return Isolation.NONE, problems


def _trial(isolation: Isolation, packages: Mapping[str, str]) -> str | None:
    """Build the root and one cell in a child; what went wrong, or None."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _enter(isolation, packages)
            status = os.waitpid(fork_cell(isolation, 0, [], _try_cell), 0)[1]
            if status:
                os.write(write, b"a first cell failed")
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as words:
        return words.read().decode() or None


def _try_cell() -> None:
    scratch_on_tmpfs(Limits())
    if usage.pids() != [1]:
        raise OSError("a new process namespace shows other processes")


def _enter(isolation: Isolation, packages: Mapping[str, str]) -> None:
    if isolation is Isolation.USER and os.geteuid() == 0:
        _become_nobody_in_namespaces()
    elif isolation is Isolation.USER:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        _map(os.getpid(), f"{INSIDE} {user} 1", f"{INSIDE} {group} 1")
    else:
        kernel.unshare(kernel.CLONE_NEWNS)
    trees = open_trees(packages)
    if isolation is Isolation.USER and os.geteuid() == _WAS_ROOT:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        kernel.set_dumpable(True)  # or its own /proc would not be its own
    enter_minimal_root(trees)


def _become_nobody_in_namespaces() -> None:
    """For a root that may make no other namespaces: have user ids in the new one that are nobody's outside.

    The limit of processes does not hold for root. The map is written by a child that stays outside, where it may use other ids.
    """
    parent = os.getpid()
    read, write = os.pipe()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.read(read, 1)
            ids = f"0 {FIRST_ID} 1\n{_WAS_ROOT} 0 1"
            _map(parent, ids, ids)
            status = 0
        finally:
            os._exit(status)
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    os.write(write, b"g")
    for descriptor in (read, write):
        os.close(descriptor)
    if os.waitpid(helper, 0)[1]:
        raise PermissionError("user ids of its own are refused")


def _map(pid: int, users: str, groups: str) -> None:
    """Write a process's user and group maps; an ordinary user may not use groups to lose rights."""
    for name, text in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def fork_cell(isolation: Isolation, slot: int, keep_open: list[int], body: Callable[[], None]) -> int:
    """A child with namespaces of its own in which `body` runs; returns its pid."""
    go_read, go_write = os.pipe()
    pid = kernel.clone(_NAMESPACES | kernel.CLONE_NEWUSER)
    if pid == 0:
        status = 1
        try:
            kernel.die_with_parent()
            os.close(go_write)
            if os.read(go_read, 1) != b"g":
                os._exit(1)
            os.close(go_read)
            _close_all_but(keep_open)
            _furnish(isolation)
            kernel.die_with_parent()
            body()
            status = 0
        except BaseException:  # noqa: BLE001 - a copy of the launcher must not run on as one; the owner reads the words
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(go_read)
    try:
        if isolation is Isolation.ROOT:
            ids = f"0 {FIRST_ID + slot * IDS_PER_CELL} {IDS_PER_CELL - 1}"
            for name in ("uid_map", "gid_map"):
                descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
                os.write(descriptor, ids.encode())
                os.close(descriptor)
        else:
            _map(pid, f"{INSIDE} {os.geteuid()} 1", f"{INSIDE} {os.getegid()} 1")
        os.write(go_write, b"g")
    finally:
        os.close(go_write)
    return pid


def _close_all_but(keep_open: list[int]) -> None:
    last = 2
    for descriptor in sorted(keep_open):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 65536)


def _furnish(isolation: Isolation) -> None:
    """Inside a new cell: its own /proc, its scratch directory, a loopback, and no way to make further namespaces."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if isolation is Isolation.ROOT:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    kernel.set_dumpable(False)
    kernel.loopback_up()


def scratch_on_tmpfs(limits: Limits) -> str:
    """Mount the cell's one writable directory, of bounded size."""
    options = f"mode=1777,size={limits.disk_mb}m,nr_inodes={limits.files}"
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    os.mkdir("/tmp/work")
    os.chmod("/tmp/work", 0o777)
    return "/tmp/work"


def fork_weak(keep_open: list[int], body: Callable[[], None]) -> int:
    """As `_fork_cell` where there are no namespaces: descendants are found and killed one by one."""
    pid = os.fork()
    if pid == 0:
        try:
            kernel.die_with_parent()
            kernel.adopt_orphans()
            _close_all_but(keep_open)
            body()
        finally:
            _kill_descendants()
            os._exit(0)
    return pid


def _kill_descendants() -> None:
    while True:
        for pid in usage.descendants(usage.every_pid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def remove(scratch: str) -> None:
    """Remove a directory whatever its program has made of the rights to it."""
    os.chmod(scratch, 0o700)
    for directory, names, _ in os.walk(scratch):
        for name in names:
            if not os.path.islink(os.path.join(directory, name)):
                os.chmod(os.path.join(directory, name), 0o700)
    shutil.rmtree(scratch)
