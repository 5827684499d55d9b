"""Checkpoints on disk: a directory that exists once its manifest, written last, verifies. The previous one stays until then, and after.

A checkpoint is filled in a hidden directory, its files are hashed into manifest.json, and one rename makes it appear. Before
older ones go it is read back. So a write that fails anywhere leaves the previous checkpoint as it was.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import RunFailed
from slipstream.core.ids import checkpoint_name
from slipstream.telemetry.atomic import atomic_write_text

MANIFEST = "manifest.json"
KEPT = 2  # the newest and the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    notes: Mapping[str, Any]  # what the writer wanted remembered: run id, lineage


def write_checkpoint(root: Path, step: int, fill: Callable[[Path], None], notes: Mapping[str, Any]) -> Checkpoint:
    """Let `fill` write files into a directory, make it the checkpoint of `step`, verify it, drop all but the newest two.

    Raises RunFailed when the disk is full or the checkpoint does not read back; older ones are untouched then.
    """
    final, partial = root / checkpoint_name(step), root / f".{checkpoint_name(step)}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    fill(partial)
    files = {path.name: _entry(path) for path in sorted(partial.iterdir())}
    atomic_write_text(partial / MANIFEST, json.dumps({"step": step, "notes": dict(notes), "files": files}, indent=1))
    if final.exists():  # a later attempt at the same step, after a resume from an older checkpoint
        shutil.rmtree(final)
    partial.rename(final)
    written = read_checkpoint(final)
    if written is None:
        raise RunFailed(f"checkpoint {final} does not read back as written; the previous one is kept")
    for path in _directories(root)[:-KEPT]:
        shutil.rmtree(path)
    return written


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in `path` if its manifest is there and every file has the bytes it says; else None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        verified = all(_entry(path / name) == entry for name, entry in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Checkpoint(path=path, step=manifest["step"], notes=manifest["notes"]) if verified else None


def newest_checkpoint(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; damaged and unfinished ones are passed over."""
    return next((found for path in reversed(_directories(root)) if (found := read_checkpoint(path))), None)


def oldest_step(root: Path) -> int:
    """Step of the oldest checkpoint still on disk; batches from there on must stay servable."""
    return min(int(path.name) for path in _directories(root))


def _directories(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name.isdigit()) if root.is_dir() else []


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
