"""The Linux calls that Python does not offer: clone, mount, pivot_root, capabilities. Thin; raises OSError as `os` does.

Called by the launcher and its cells only. Standard library only.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_SIGCHLD, _SIGKILL = 17, 9
_CAPABILITY_VERSION = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_NUMBERS = {"x86_64": (56, 155, 126), "aarch64": (220, 41, 91)}  # clone, pivot_root, capset
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4

# calls that hold memory outside every limit, or that no program of a task needs and that have opened kernels before
_FORBIDDEN = {
    "x86_64": (319, 447, 29, 30, 425, 426, 427, 321, 323, 298, 248, 249, 250, 101, 310, 311, 272, 308, 165, 155, 246, 320, 175, 313),
    "aarch64": (279, 447, 194, 196, 425, 426, 427, 280, 282, 241, 217, 218, 219, 117, 270, 271, 97, 268, 40, 41, 104, 294, 105, 273),
}  # memfd_create, memfd_secret, shmget, shmat, io_uring (3), bpf, userfaultfd, perf_event_open, keys (3), ptrace, process_vm (2),
#    unshare, setns, mount, pivot_root, kexec (2), init_module (2)
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_BPF_LOAD, _BPF_EQUAL, _BPF_ABOVE, _BPF_RETURN = 0x20, 0x15, 0x35, 0x06
_SECCOMP_ALLOW, _SECCOMP_KILL, _SECCOMP_EPERM = 0x7FFF0000, 0x80000000, 0x00050001
_X32 = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def supported() -> bool:
    """Whether the numbers of the calls are known for this machine."""
    return platform.system() == "Linux" and platform.machine() in _NUMBERS


def clone(flags: int) -> int:
    """As `os.fork` with new namespaces; 0 in the child. For processes with one thread only."""
    return _call(_numbers()[0], flags | _SIGCHLD, 0, 0, 0, 0)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None), target)


def bind_read_only(source: str, target: str) -> None:
    """The file or tree at `source` also at `target`, where it cannot be changed. `target` must exist."""
    mount(source, target, flags=MS_BIND | MS_REC)
    make_read_only(target)


def make_read_only(target: str) -> None:
    """The mount at `target` and all below it."""
    attributes = struct.pack("=QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    path = ctypes.c_char_p(target.encode())
    try:
        _call(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, attributes, len(attributes))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)  # Linux before 5.12


def pivot_root(new_root: str) -> None:
    """Make `new_root`, a mount, the root and let go of the old one."""
    os.chdir(new_root)
    _call(_numbers()[1], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _check(_libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability for good: none now, none through a program that is started later."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _call(_numbers()[2], ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_calls() -> None:
    """Refuse the calls of `_FORBIDDEN` from here on, in this process and all it starts. After `drop_capabilities`."""
    machine = platform.machine()
    numbers = _FORBIDDEN[machine]
    refused = len(numbers)
    steps = [(_BPF_LOAD, 0, 0, 4), (_BPF_EQUAL, 1, 0, _ARCHITECTURES[machine]), (_BPF_RETURN, 0, 0, _SECCOMP_KILL), (_BPF_LOAD, 0, 0, 0)]
    steps.append((_BPF_ABOVE, refused + 1, 0, _X32))  # the same calls by other numbers
    steps += [(_BPF_EQUAL, refused - place, 0, number) for place, number in enumerate(numbers)]
    steps += [(_BPF_RETURN, 0, 0, _SECCOMP_ALLOW), (_BPF_RETURN, 0, 0, _SECCOMP_EPERM)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = struct.pack("@HP", len(steps), ctypes.addressof(program))
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_char_p(header)))


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def set_dumpable(dumpable: bool) -> None:
    """A process that is not dumpable cannot be traced or read by others of its user."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def loopback_up() -> None:
    """Switch on `lo` of the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _numbers() -> tuple[int, int, int]:
    return _NUMBERS[platform.machine()]


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def _call(number: int, *arguments: object) -> int:
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *wide))


def _check(result: int, about: str | None = None) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
    return result
