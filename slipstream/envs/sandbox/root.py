"""The root that cells live in: Python, the system's libraries and programs, a few packages; read-only; nothing of ours.

Built once by the launcher in a mount namespace of its own, on a tmpfs, so that nothing is left when the launcher is gone.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slipstream.envs.sandbox import kernel

PACKAGES = "/packages"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PASSWD = "root:x:0:0::/tmp:/bin/sh\nprogram:x:1:1::/tmp:/bin/sh\n"


def open_trees(packages: Mapping[str, str]) -> dict[str, int]:
    """Where each file or tree goes -> a descriptor of it. `packages`: name at `PACKAGES` -> path of the directory or file now."""
    found = {path: path for path in _SYSTEM if os.path.exists(path) and not _is_link_to_keep(path)}
    if not sys.base_prefix.startswith("/usr"):
        found |= {path: path for path in (os.path.realpath(sys.executable), sys.base_prefix + "/lib")}
    found |= {f"{PACKAGES}/{name}": path for name, path in packages.items()}
    found |= {f"/dev/{name}": f"/dev/{name}" for name in _DEVICES}
    return {target: os.open(path, os.O_PATH) for target, path in found.items()}


def enter_minimal_root(trees: Mapping[str, int]) -> None:
    """Build the root in the current mount namespace and make it this process's."""
    base = "/tmp"
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path in filter(_is_link_to_keep, _SYSTEM):
        os.symlink(os.readlink(path), base + path)
    for target, descriptor in trees.items():
        _bind(descriptor, base + target, read_only=not target.startswith("/dev/"))
        os.close(descriptor)
    _cover_site_packages(base)
    _small_files(base)
    for name in ("/proc", "/tmp"):
        os.mkdir(base + name)
    kernel.mount("/proc", base + "/proc", flags=kernel.MS_BIND | kernel.MS_REC)  # cells cover it; without it they could not mount theirs
    kernel.mount("none", base, flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.pivot_root(base)


def _is_link_to_keep(path: str) -> bool:
    """Links of a merged /usr, e.g. /lib -> usr/lib."""
    return os.path.islink(path) and not path.startswith("/etc/")


def _bind(descriptor: int, target: str, read_only: bool) -> None:
    source = f"/proc/self/fd/{descriptor}"
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    if read_only:
        kernel.bind_read_only(source, target)
    else:
        kernel.mount(source, target, flags=kernel.MS_BIND)


def _cover_site_packages(base: str) -> None:
    """What was installed beside the interpreter stays out of sight."""
    for directory in Path(base + sys.base_prefix + "/lib").glob("python*/site-packages"):
        kernel.mount("tmpfs", str(directory), "tmpfs", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=4k")


def _small_files(base: str) -> None:
    os.makedirs(base + "/etc", exist_ok=True)
    Path(base + "/etc/passwd").write_text(_PASSWD)
    Path(base + "/etc/hosts").write_text("127.0.0.1 localhost\n")
    links = {"shm": "/tmp", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
    for name, target in links.items():
        os.symlink(target, f"{base}/dev/{name}")
