"""A learner's published weights: kept by reference for itself, hashed and served for workers. Implements `core.ports.WeightStore`."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from slipstream.core.clock import Clock
from slipstream.core.records import WeightVersion
from slipstream.telemetry.events import Events
from slipstream.weights.chunks import ChunkStore, HeldVersion, PatchKey
from slipstream.weights.digest import chunks_of
from slipstream.weights.manifest import DTYPES, Manifest, Patch, Tensor
from slipstream.weights.patches import encode_patch
from slipstream.weights.snapshot import Taken, WireDtype, held_version, take
from slipstream.weights.store import MemoryStore

MOST_THREADS = 4


class PublishedStore:
    """Publishing takes no time of the learner's thread: the copy to the host, the hashes and patches are another thread's work.

    One version is in that work at a time, so a learner that is faster waits for it. What fails there is raised by the next call.
    """

    def __init__(
        self,
        *,
        chunks: ChunkStore,
        keep: int,
        announce: Callable[[Manifest], None],
        events: Events,
        clock: Clock,
        wire_dtype: WireDtype = "as_is",
        patch_share: float = 0.5,
    ) -> None:
        """`announce` is called, by the other thread, once a version is served from `chunks`. `wire_dtype` is that of floating tensors:
        "as_is" where samplers must have the learner's values to the bit. Patches are offered where together they have at most
        `patch_share` of the bytes that they replace; 0: never."""
        self._chunks, self._announce, self._events, self._clock = chunks, announce, events, clock
        self._wire_dtype: WireDtype = wire_dtype
        self._patch_share = patch_share
        self._kept = MemoryStore(keep=keep)
        self._taken: Mapping[str, Taken] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights-publish")
        self._hashers = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="weights-hash")
        self._last: Future[None] | None = None
        self._digests: dict[tuple[int, int], str] = {}
        self._lock = threading.Lock()

    def publish(self, weights: WeightVersion) -> None:
        """Make a version available. Raises ValueError when it is not newer than all published ones, and what failed with the last one."""
        self.flush()
        self._kept.publish(weights)
        self._last = self._thread.submit(self._serve, weights)

    def flush(self) -> None:
        """Wait until everything published is served and announced."""
        if self._last:
            self._last.result()

    def newest(self) -> int:
        return self._kept.newest()

    def has(self, version: int) -> bool:
        return self._kept.has(version)

    def get(self, version: int) -> WeightVersion:
        """Exactly this version, the learner's own tree. The digest is that of what workers get, "" until it is served.

        Raises RunFailed when it has gone or never was.
        """
        weights = self._kept.get(version)
        return replace(weights, digest=self.digest(weights.lineage, version))

    def digest(self, lineage: int, version: int) -> str:
        """Of a version as workers get it, also of one that has gone; "" where it was not served (yet)."""
        with self._lock:
            return self._digests.get((lineage, version), "")

    def close(self) -> None:
        """Wait for what is in work, end the threads."""
        self._thread.shutdown(wait=True)
        self._hashers.shutdown(wait=True)
        self.flush()

    def _serve(self, weights: WeightVersion) -> None:
        started = self._clock.now_s()
        before = self._chunks.newest()
        self._taken = take(weights.params, self._wire_dtype, self._taken, self._hashers)
        held = held_version(weights, self._taken)
        hashed = self._clock.now_s()
        if before and self._patch_share > 0:
            held = self._with_patches(held, before)
        self._chunks.add(held)
        with self._lock:
            self._digests[weights.lineage, weights.version] = held.manifest.digest
        self._events.emit(
            "learner",
            "weights_served",
            version=weights.version,
            digest=held.manifest.digest,
            bytes=held.manifest.bytes,
            patch_bytes=sum(len(patch) for patch in held.patches.values()),
            hash_seconds=round(hashed - started, 6),
            patch_seconds=round(self._clock.now_s() - hashed, 6),
        )
        self._announce(held.manifest)

    def _with_patches(self, held: HeldVersion, before: HeldVersion) -> HeldVersion:
        """With patches of every chunk that changed, where they pay together; it is given up as soon as they cannot."""
        pairs = list(_changed(held, before))
        budget = self._patch_share * sum(len(new) for _, _, new, _ in pairs)
        patches: dict[PatchKey, bytes] = {}
        work = [(key, len(new), self._hashers.submit(encode_patch, new, old, word_bytes)) for key, word_bytes, new, old in pairs]
        for key, size, future in work:
            if budget < 0:
                future.cancel()
                continue
            patch = future.result()
            budget -= len(patch)
            if len(patch) < size:
                patches[key] = patch
        if budget < 0 or not patches:
            return held
        offers = {key[0]: Patch(base=key[1], bytes=len(patch)) for key, patch in patches.items()}
        tensors = tuple(_offering(tensor, offers) for tensor in held.manifest.tensors)
        return HeldVersion(manifest=replace(held.manifest, tensors=tensors), arrays=held.arrays, patches=patches)


def _changed(held: HeldVersion, before: HeldVersion) -> Iterator[tuple[PatchKey, int, memoryview, memoryview]]:
    """Each chunk that another had the place of: hashes of both, bytes a word, and the bytes of both. Chunks that are there twice, once."""
    earlier = {tensor.name: tensor for tensor in before.manifest.tensors}
    seen = {chunk.hash for tensor in before.manifest.tensors for chunk in tensor.chunks}
    for tensor in held.manifest.tensors:
        old = earlier.get(tensor.name)
        if old is None or (old.dtype, old.shape) != (tensor.dtype, tensor.shape):
            continue
        pairs = zip(chunks_of(held.arrays[tensor.name].data), chunks_of(before.arrays[tensor.name].data), strict=True)
        for new_chunk, old_chunk, (new, base) in zip(tensor.chunks, old.chunks, pairs, strict=True):
            if new_chunk.hash not in seen:
                seen.add(new_chunk.hash)
                yield (new_chunk.hash, old_chunk.hash), DTYPES[tensor.dtype], new, base


def _offering(tensor: Tensor, offers: Mapping[str, Patch]) -> Tensor:
    """The tensor with the patches of its chunks, by their hashes."""
    return replace(tensor, chunks=tuple(replace(chunk, patch=offers.get(chunk.hash)) for chunk in tensor.chunks))
