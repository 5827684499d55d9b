"""A sandbox that runs whole programs, and what is left of it on this machine. For the tests of the sandbox."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from slipstream.envs.sandbox.records import Ended, Job, Limits
from slipstream.envs.sandbox.sandbox import Sandbox

_WRITTEN = {"work", "mine", "big", "x"}  # what the programs of the tests write
PROGRAM = "slipstream.envs.verifiers.code_program:main"


def job(source: str, stdin: bytes = b"", **limits: Any) -> Job:
    return Job(program=PROGRAM, program_text=source.encode(), stdin=stdin, limits=Limits(**({"seconds": 5.0, "memory_mb": 512} | limits)))


def told(ended: Ended) -> Any:
    """What a program printed as JSON."""
    assert ended.exit_status == 0, ended
    return json.loads(ended.stdout)


def machine() -> tuple[list[int], list[str], str]:
    """What a cell could leave behind: processes below this one, files of the temporary directory, mounts."""
    files = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("slipstream-cell-") or name in _WRITTEN]
    return descendants(os.getpid()), sorted(files), Path("/proc/self/mounts").read_text()


def descendants(parent: int) -> list[int]:
    """The processes below one, whoever they belong to."""
    found = [parent]
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    for above in found:
        found += sorted(pid for pid, its in parents.items() if its == above)
    return found[1:]


def quiet(box: Sandbox) -> bool:
    """Whether the launcher has no process below it."""
    return descendants(box.pid) == []
