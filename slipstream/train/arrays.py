"""Pytrees of arrays in safetensors files: each leaf under the name of its place in the tree, checked on reading."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from slipstream.core.errors import RunFailed
from slipstream.telemetry.atomic import atomic_write_bytes

Tree = TypeVar("Tree")


def write_tree(path: Path, tree: object, notes: Mapping[str, str] | None = None) -> None:
    """Write every leaf of `tree`, and `notes` as the file's metadata. Raises RunFailed when there is no space."""
    leaves = {jax.tree_util.keystr(place): np.asarray(leaf, order="C") for place, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    atomic_write_bytes(path, save(leaves, metadata=dict(notes or {})))


def read_tree(path: Path, like: Tree) -> tuple[Tree, dict[str, str]]:
    """A tree of the shape of `like` with the file's leaves, and the notes. Raises RunFailed when they do not fit."""
    places, structure = jax.tree_util.tree_flatten_with_path(like)
    try:
        with safe_open(str(path), framework="numpy") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            notes = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise RunFailed(f"{path} cannot be read: {error}") from error
    wanted = {jax.tree_util.keystr(place): leaf for place, leaf in places}
    wrong = sorted(stored.keys() ^ wanted.keys()) + [
        name for name in sorted(stored.keys() & wanted.keys()) if _kind(stored[name]) != _kind(wanted[name])
    ]
    if wrong:
        raise RunFailed(f"{path} does not fit this run's model: missing, extra or of another shape or type: {', '.join(wrong)}")
    return jax.tree_util.tree_unflatten(structure, [jnp.asarray(stored[name]) for name in wanted]), notes


def _kind(array: np.ndarray | jax.Array) -> tuple[tuple[int, ...], np.dtype]:
    return np.shape(array), np.dtype(array.dtype)
