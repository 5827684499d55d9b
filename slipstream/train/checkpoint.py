"""Checkpoints on disk: a directory that exists once its manifest, written last, verifies. The previous one stays until then, and after.

A checkpoint is filled in a hidden directory, its files are hashed into manifest.json, all is read back, and one rename makes it
appear. So a write that fails anywhere leaves the previous checkpoint as it was. The manifest carries its own hash: a flipped bit
there must not turn one step into another. Called by the runtime's checkpointer; what is in the files is the learner's business.

A run goes on from one of the newest two, `NNNNNN`. The one with the best score is kept as `best-NNNNNN` once it is older than those.
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
from slipstream.telemetry.atomic import atomic_write_text, sync_directory
from slipstream.train.peers import ALONE, Peers

MANIFEST = "manifest.json"
KEPT = 2  # the newest and the one before
_BEST = "best-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    notes: Mapping[str, Any]  # what the writer wanted remembered: run id, lineage
    size_bytes: int  # of its files


def write_checkpoint(
    root: Path,
    step: int,
    fill: Callable[[Path], None],
    notes: Mapping[str, Any],
    *,
    scores: Mapping[int, float] | None = None,
    peers: Peers = ALONE,
) -> Checkpoint | None:
    """Let `fill` write files into a directory, make it the checkpoint of `step`, verify it, drop all but the newest two and the best.

    `scores`: held-out score by step; the checkpoint with the highest is the best. None: no best is kept. Checkpoints of later steps
    go as well: they are of a future that a resume from an older one gave up. Returns None in all processes but the first. Raises
    RunFailed when the disk is full or the checkpoint does not read back; the others are untouched then.
    """
    partial = root / f".{checkpoint_name(step)}.partial"
    if peers.index == 0:
        _put_right(root)
        partial.mkdir(parents=True)
    peers.wait("a checkpoint's directory")
    fill(partial)
    peers.wait("a checkpoint's files")
    if peers.index:
        return None
    manifest = {"step": step, "notes": dict(notes), "files": {path.name: _entry(path) for path in sorted(partial.iterdir())}}
    atomic_write_text(partial / MANIFEST, json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1))
    written = read_checkpoint(partial)
    if written is None:
        raise RunFailed(f"checkpoint {partial} does not read back as written; the previous one is kept")
    final = _appear(partial, root / checkpoint_name(step))
    _drop_others(root, final, scores)
    return replace(written, path=final)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in `path` if its manifest is there, intact, and every file has the bytes it says; else None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        intact = manifest.pop("sha256") == _digest(manifest)
        verified = intact and all(_entry(path / name) == entry for name, entry in manifest["files"].items())
        size = sum(entry["bytes"] for entry in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Checkpoint(path=path, step=manifest["step"], notes=manifest["notes"], size_bytes=size) if verified else None


def newest_checkpoint(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; damaged and unfinished ones are passed over."""
    candidates = [*_directories(root), *(path for path in root.glob(".*.replaced") if not _final(path).exists())]
    candidates.sort(key=lambda path: _final(path).name)
    return next((found for path in reversed(candidates) if (found := read_checkpoint(path))), None)


def checkpoint_of(root: Path, step: int) -> Checkpoint | None:
    """The checkpoint of `step`, be it among the newest or the best, if it verifies."""
    paths = (root / checkpoint_name(step), root / f"{_BEST}{checkpoint_name(step)}")
    return next((found for path in paths if (found := read_checkpoint(path))), None)


def steps_on_disk(root: Path) -> list[int]:
    """Steps of all checkpoints, rising, the best included; not verified."""
    return sorted({int(path.name.removeprefix(_BEST)) for path in [*_directories(root), *_bests(root)]})


def oldest_step(root: Path) -> int:
    """Step of the oldest checkpoint that a run may go on from; batches from there on must stay servable."""
    return min(int(path.name) for path in _directories(root))


def _directories(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name.isdigit()) if root.is_dir() else []


def _bests(root: Path) -> list[Path]:
    return sorted(path for path in root.glob(f"{_BEST}*") if path.is_dir() and path.name.removeprefix(_BEST).isdigit())


def _appear(partial: Path, final: Path) -> Path:
    """Rename the filled directory into its place. One of the same step (an interrupted run writes its last step again) makes room first."""
    sync_directory(partial)
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(replaced)
    try:
        partial.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    sync_directory(final.parent)
    return final


def _drop_others(root: Path, newest: Path, scores: Mapping[int, float] | None) -> None:
    """Delete what is older than the newest two and what is of later steps; the best of all moves out of the way."""
    directories = _directories(root)
    now = directories.index(newest) + 1
    later = [path for path in _bests(root) if path.name > f"{_BEST}{newest.name}"]
    for path in [*directories[now:], *later]:
        shutil.rmtree(path)
    best = _best(root, scores or {})
    for path in directories[: max(0, now - KEPT)]:
        if path.name == best:
            path.rename(root / f"{_BEST}{path.name}")
            sync_directory(root)
        else:
            shutil.rmtree(path)
    for path in _bests(root):
        if path.name.removeprefix(_BEST) != best:
            shutil.rmtree(path)
    _put_right(root)


def _best(root: Path, scores: Mapping[int, float]) -> str:
    """Name of the checkpoint on disk with the highest score, the newer of equals; "" where none was scored."""
    scored = [(scores[step], step) for step in steps_on_disk(root) if step in scores]
    return checkpoint_name(max(scored)[1]) if scored else ""


def _put_right(root: Path) -> None:
    """After a write that ended in the middle: a checkpoint that was to be replaced and was not comes back; the leftovers go."""
    for path in root.glob(".*.replaced"):
        if _final(path).exists():
            shutil.rmtree(path)
        else:
            path.rename(_final(path))
    for path in root.glob(".*.partial"):
        shutil.rmtree(path)


def _final(path: Path) -> Path:
    """The place of a checkpoint that a `.replaced` directory was moved from; of others, their own."""
    return path.with_name(path.name.removeprefix(".").removesuffix(".replaced"))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
