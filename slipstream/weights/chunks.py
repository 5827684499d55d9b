"""Versions in host memory, and their chunks by hash: what a publisher serves, what a worker holds and passes on. Thread-safe.

Equal tensors of several versions are one array here. Nothing is ever written to an array after it was added.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.weights.digest import CHUNK_BYTES, chunks_of
from slipstream.weights.manifest import Manifest, Tensor

Content = tuple[str, tuple[int, ...], tuple[str, ...]]  # dtype, shape and hashes: equal for equal tensors, whatever their names
PatchKey = tuple[str, str]  # hashes of a chunk and of its base


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersion:
    """A whole version, verified by whoever made it."""

    manifest: Manifest
    arrays: Mapping[str, np.ndarray]  # by tensor name: uint8 [bytes]
    patches: Mapping[PatchKey, bytes] = field(default_factory=dict[PatchKey, bytes])


def content(tensor: Tensor) -> Content:
    """What makes tensors equal."""
    return tensor.dtype, tensor.shape, tensor.hashes


class ChunkStore:
    """Keeps the newest `keep` versions; each is whole, so any of them is a base for patches."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._versions: dict[tuple[int, int], HeldVersion] = {}
        self._chunks: dict[str, memoryview] = {}
        self._lock = threading.Lock()

    def add(self, held: HeldVersion) -> None:
        """Hold and serve a version. Raises RunFailed where one of its lineage and number has other contents: versions are immutable."""
        key = (held.manifest.lineage, held.manifest.version)
        with self._lock:
            before = self._versions.get(key)
            if before and before.manifest.digest != held.manifest.digest:
                raise RunFailed(
                    f"version {key[1]} of lineage {key[0]} has digest {before.manifest.digest}, and is to get {held.manifest.digest}; "
                    "versions are immutable, so two learners publish as one"
                )
            self._versions[key] = held
            for old in sorted(self._versions)[: -self._keep]:
                del self._versions[old]
            self._chunks = {hashed: data for one in self._versions.values() for hashed, data in _chunks(one)}

    def version(self, lineage: int, version: int) -> HeldVersion | None:
        """Exactly this one, or None."""
        with self._lock:
            return self._versions.get((lineage, version))

    def newest(self) -> HeldVersion | None:
        """The newest version of the newest lineage."""
        with self._lock:
            return self._versions[max(self._versions)] if self._versions else None

    def chunk(self, hashed: str) -> memoryview | None:
        """Read-only bytes, which stay valid for as long as they are held."""
        with self._lock:
            return self._chunks.get(hashed)

    def patch(self, key: PatchKey) -> bytes | None:
        with self._lock:
            found = (one.patches[key] for one in self._versions.values() if key in one.patches)
            return next(found, None)

    def tensors(self) -> dict[Content, np.ndarray]:
        """All tensors held, by content."""
        with self._lock:
            return {content(tensor): one.arrays[tensor.name] for one in self._versions.values() for tensor in one.manifest.tensors}


def _chunks(held: HeldVersion) -> list[tuple[str, memoryview]]:
    found = []
    for tensor in held.manifest.tensors:
        parts = chunks_of(held.arrays[tensor.name].data.toreadonly())
        found += [(chunk.hash, part) for chunk, part in zip(tensor.chunks, parts, strict=True)]
    return found


def landing_array(size: int) -> np.ndarray:
    """Fresh memory uint8 [size], so aligned that jax on a CPU takes it as it is, without a copy."""
    room = np.empty(size + _ALIGNMENT, np.uint8)  # numpy asks for large pages, which makes the first touch three times cheaper
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]


_ALIGNMENT = 64
assert CHUNK_BYTES % _ALIGNMENT == 0
