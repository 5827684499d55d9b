"""The machine as jax and the runtime see it: versions, devices, cores, memory, flags, extras. Called by `doctor`."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.runtime.doctor.line import Grade, Line

PART = "machine"
LEAST_MEMORY_GIB = 2.0  # the quickstart needs about 1
_EXTRA = re.compile(r"(?P<package>[A-Za-z0-9_.-]+).*extra == ['\"](?P<extra>\w+)['\"]")
_GIB = 2**30


def machine_lines() -> list[Line]:
    """Versions, devices, cores, memory, flags, cache, extras."""
    import jax

    from slipstream.models.cpu.packed import kind

    devices = jax.devices()
    kinds = sorted({device.device_kind for device in devices})
    flags = os.environ.get("XLA_FLAGS", "")
    return [
        _line("python", f"{platform.python_version()}, {platform.platform()}"),
        _line("jax", f"{jax.__version__}, jaxlib {importlib.metadata.version('jaxlib')}"),
        _line("devices", f"{len(devices)} x {devices[0].platform} ({', '.join(kinds)})"),
        _line("cores", f"{_cores()}; 1-minute load {os.getloadavg()[0]:.1f}"),
        _line("products", kind()),
        _memory(),
        _line("XLA_FLAGS", flags or "none")
        if "fast_math=true" not in flags
        else _line("XLA_FLAGS", flags, "fast math changes bits from program to program; unset it"),
        _cache(),
        *_extras(),
    ]


def _line(name: str, detail: str, fix: str = "") -> Line:
    """A warning where there is something to fix."""
    return Line(part=PART, name=name, grade=Grade.WARNING if fix else Grade.OK, detail=detail, fix=fix)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> Line:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    free = _available_gib()
    known = total if free is None else free
    detail = f"{total:.1f} GiB" + ("" if free is None else f", {free:.1f} GiB free")
    fix = f"the quickstart wants {LEAST_MEMORY_GIB:g} GiB; end other programs" if known < LEAST_MEMORY_GIB else ""
    return _line("memory", detail, fix)


def _available_gib() -> float | None:
    """What may still be used; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 / _GIB if found else None


def _cache() -> Line:
    """Where compiled programs are kept, see `runtime.devices`."""
    import jax

    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    if not directory:
        return _line("compile cache", "none", "every start compiles anew; SLIPSTREAM_CACHE names a directory")
    base = next(path for path in (Path(directory), *Path(directory).parents) if path.exists())
    fix = "" if os.access(base, os.W_OK) else "the directory cannot be written; set SLIPSTREAM_CACHE to one that can"
    return _line("compile cache", str(directory), fix)


def _extras() -> Iterator[Line]:
    """One line: which optional packages are there, by the installed package's own list of extras."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("slipstream") or []:
        match = _EXTRA.match(requirement)
        if match and match["extra"] != "dev":
            found.setdefault(match["extra"], []).append(match["package"])
    told = [f"{extra} ({'installed' if all(map(_installed, packages)) else 'not installed'})" for extra, packages in sorted(found.items())]
    yield _line("extras", ", ".join(told) or "none known")


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
