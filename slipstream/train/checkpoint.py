"""Checkpoints on disk: a directory that exists once its manifest, written last, verifies. The previous one stays until then, and after.

A checkpoint is filled in a hidden directory, its files are hashed into manifest.json, all is read back, and one rename makes it
appear. So a write that fails anywhere leaves the previous checkpoint as it was. The manifest carries its own hash: a flipped bit
there must not turn one step into another.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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

    Checkpoints of later steps go as well: they are of a future that a resume from an older one gave up. Raises RunFailed when the
    disk is full or the checkpoint does not read back; the others are untouched then.
    """
    _remove_leftovers(root)
    partial = root / f".{checkpoint_name(step)}.partial"
    partial.mkdir(parents=True)
    fill(partial)
    manifest = {"step": step, "notes": dict(notes), "files": {path.name: _entry(path) for path in sorted(partial.iterdir())}}
    atomic_write_text(partial / MANIFEST, json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1))
    written = read_checkpoint(partial)
    if written is None:
        raise RunFailed(f"checkpoint {partial} does not read back as written; the previous one is kept")
    final = _appear(partial, root / checkpoint_name(step))
    directories = _directories(root)
    now = directories.index(final) + 1
    for path in directories[: max(0, now - KEPT)] + directories[now:]:
        shutil.rmtree(path)
    _remove_leftovers(root)
    return replace(written, path=final)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in `path` if its manifest is there, intact, and every file has the bytes it says; else None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        intact = manifest.pop("sha256") == _digest(manifest)
        verified = intact and all(_entry(path / name) == entry for name, entry in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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


def _appear(partial: Path, final: Path) -> Path:
    """Rename the filled directory into its place. One of the same step (an interrupted run writes its last step again) makes room first."""
    replaced = final.with_name(f".{final.name}.replaced")
    if not final.exists():
        return partial.rename(final)
    final.rename(replaced)
    try:
        return partial.rename(final)
    except OSError:
        replaced.rename(final)
        raise


def _remove_leftovers(root: Path) -> None:
    """Delete the hidden directories of writes that ended in the middle, and of replaced checkpoints."""
    for path in [*root.glob(".*.partial"), *root.glob(".*.replaced")]:
        shutil.rmtree(path)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
