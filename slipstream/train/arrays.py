"""Pytrees of arrays in safetensors files: each leaf under the name of its place in the tree, checked on reading.

A leaf is stored whole, or, where it is spread over processes, as the pieces that each process has: `NAME@start:stop,start:stop`, in a
file of the process's own. Any layout reads any other: a device takes the parts of the pieces that it needs. Plain safetensors, and
not a checkpoint library's format: every tool reads it, and every byte is written by our own code, so that tests make each one fail.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from slipstream.core.errors import RunFailed
from slipstream.telemetry.atomic import atomic_file
from slipstream.weights.safetensors_writer import NAMES, safetensors_header

Tree = TypeVar("Tree")
Leaves = Mapping[str, Any]  # name to array, on device or host
Region = tuple[tuple[int, int], ...]  # start and stop on each axis


def leaves(tree: object) -> Leaves:
    """What this process stores of `tree`, by name: references, no copies. Of several copies of a piece one process stores one."""
    found: dict[str, Any] = {}
    for place, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(place)
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            found |= {name: leaf} if jax.process_index() == 0 else {}
            continue
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                spans = [part.indices(size)[:2] for part, size in zip(shard.index, leaf.shape, strict=True)]
                found[f"{name}@{','.join(f'{start}:{stop}' for start, stop in spans)}"] = shard.data
    return found


def on_host(arrays: Leaves) -> Leaves:
    """Copies that stay as they are whatever is done to the arrays, such as donating them."""
    for array in arrays.values():
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def write_leaves(path: Path, arrays: Leaves, notes: Mapping[str, str] | None = None) -> None:
    """Write `arrays`, one in host memory at a time, and `notes` as the file's metadata. Raises RunFailed when there is no space.

    With several processes each writes a file of its own beside the others'.
    """
    if jax.process_count() > 1:
        path = path.with_name(f"{path.stem}.{jax.process_index()}-of-{jax.process_count()}{path.suffix}")
    order = sorted(arrays, key=lambda name: (-np.dtype(arrays[name].dtype).itemsize, name))  # each stays aligned to its own size
    with atomic_file(path) as file:
        file.write(safetensors_header({name: (np.shape(arrays[name]), np.dtype(arrays[name].dtype)) for name in order}, notes or {}))
        for name in order:
            file.write(np.asarray(arrays[name], order="C").reshape(-1).view(np.uint8).data)


def write_tree(path: Path, tree: object, notes: Mapping[str, str] | None = None) -> None:
    """`write_leaves` of all that this process has of `tree`."""
    write_leaves(path, leaves(tree), notes)


def read_tree(path: Path, like: Tree) -> tuple[Tree, dict[str, str]]:
    """A tree of the shape of `like`, laid out as it is, with the stored leaves; and the notes. Raises RunFailed when they do not fit."""
    places, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(place): leaf for place, leaf in places}
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(str(file), framework="numpy")) for file in _files(path)]
            notes = files[0].metadata() or {}
            stored = _stored(files)
            wrong = sorted(stored.keys() ^ wanted.keys())
            wrong += [name for name in sorted(stored.keys() & wanted.keys()) if not _fits(stored[name], wanted[name])]
            if wrong:
                raise RunFailed(f"{path} does not fit this run's model: missing, extra or of another shape or type: {', '.join(wrong)}")
            found = [_laid_out(stored[name], leaf) for name, leaf in wanted.items()]
        except (OSError, SafetensorError) as error:
            raise RunFailed(f"{path} cannot be read: {error}") from error
    return jax.tree_util.tree_unflatten(structure, found), notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A stored tensor."""

    file: Any
    name: str  # in the file
    region: Region  # of its leaf

    def read(self, region: Region) -> np.ndarray:
        """The part of it that is `region` of the leaf."""
        if region == self.region:
            return self.file.get_tensor(self.name)
        return self.file.get_slice(self.name)[_slices(region, self.region)]


def _files(path: Path) -> list[Path]:
    """The file, or those of all processes. Raises OSError where some are missing."""
    parts = sorted(path.parent.glob(f"{path.stem}.*-of-*{path.suffix}"))
    if path.exists() or not parts:
        return [path]
    count = int(parts[0].name.removesuffix(path.suffix).rpartition("-of-")[2])
    return [path.with_name(f"{path.stem}.{index}-of-{count}{path.suffix}") for index in range(count)]


def _stored(files: Sequence[Any]) -> dict[str, list[_Piece]]:
    found: dict[str, list[_Piece]] = {}
    for file in files:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            leaf, _, spans = name.partition("@")
            region = tuple((0, size) for size in file.get_slice(name).get_shape())
            if spans:
                region = tuple((int(start), int(stop)) for start, _, stop in (span.partition(":") for span in spans.split(",")))
            found.setdefault(leaf, []).append(_Piece(file=file, name=name, region=region))
    return found


def _fits(pieces: Sequence[_Piece], leaf: Any) -> bool:
    """The pieces are of the leaf's type and make up the whole of it, each part once."""
    shape, kind = np.shape(leaf), NAMES.get(np.dtype(leaf.dtype).name)
    regions = [piece.region for piece in pieces]
    return (
        all(piece.file.get_slice(piece.name).get_dtype() == kind for piece in pieces)
        and all(len(region) == len(shape) for region in regions)
        and all(0 <= start <= stop <= size for region in regions for (start, stop), size in zip(region, shape, strict=True))
        and sum(_size(region) for region in regions) == math.prod(shape)
        and not any(_size(_common(one, other)) for index, one in enumerate(regions) for other in regions[:index])
    )


def _laid_out(pieces: Sequence[_Piece], like: Any) -> jax.Array:
    shape, dtype = np.shape(like), np.dtype(like.dtype)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        spans = index or (slice(None),) * len(shape)
        wanted = tuple(span.indices(size)[:2] for span, size in zip(spans, shape, strict=True))
        return _assembled(pieces, wanted, dtype)

    if isinstance(like, jax.Array) and len(like.sharding.device_set) > 1:
        return jax.make_array_from_callback(shape, like.sharding, part)
    return jnp.asarray(part(None))


def _assembled(pieces: Sequence[_Piece], wanted: Region, dtype: np.dtype) -> np.ndarray:
    """The region `wanted` of a leaf, from all pieces that have some of it."""
    if any(piece.region == wanted for piece in pieces):
        return next(piece.read(wanted) for piece in pieces if piece.region == wanted)
    found = np.empty([stop - start for start, stop in wanted], dtype)
    for piece in pieces:
        common = _common(piece.region, wanted)
        if _size(common):
            found[_slices(common, wanted)] = piece.read(common)
    return found


def _slices(region: Region, of: Region) -> tuple[slice, ...]:
    """Where `region` lies in an array that holds the region `of`."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(region, of, strict=True))


def _common(one: Region, other: Region) -> Region:
    return tuple(_overlap(one, other))


def _overlap(one: Region, other: Region) -> Iterator[tuple[int, int]]:
    for (first, last), (start, stop) in zip(one, other, strict=True):
        low = max(first, start)
        yield low, max(low, min(last, stop))


def _size(region: Region) -> int:
    return math.prod(stop - start for start, stop in region)
