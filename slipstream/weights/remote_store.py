"""A worker's published weights: fetched by a thread into a second buffer, verified, placed, then swapped in.

Implements `core.ports.WeightStore`. Whoever hears of a version (from the coordinator) announces it here. Until it is whole and
verified, nobody sees it. What is here is served to other workers from the same store of chunks.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from slipstream.core.errors import RunFailed, SlipstreamError
from slipstream.core.records import WeightVersion
from slipstream.telemetry.events import Events
from slipstream.weights.chunks import ChunkStore, HeldVersion, content
from slipstream.weights.fetch import Fetcher
from slipstream.weights.manifest import Manifest, manifest_of
from slipstream.weights.snapshot import Place, on_device, place_policy, placed_leaves

PLACED = 2  # trees on the device: the one in use and the next


class RemoteStore:
    """Thread-safe. Versions of one lineage: with a newer lineage all others are forgotten, until its first is here."""

    def __init__(
        self, *, chunks: ChunkStore, fetcher: Fetcher, events: Events, role: str, newest_only: bool = False, place: Place = on_device
    ) -> None:
        """`newest_only`: versions that were announced and then overtaken are not fetched (in flight; pinned samplers need each)."""
        self._chunks, self._fetcher, self._events, self._role = chunks, fetcher, events, role
        self._newest_only, self._place = newest_only, place
        self._lock = threading.Lock()
        self._lineage = 0
        self._announced: OrderedDict[int, tuple[Manifest, tuple[str, ...]]] = OrderedDict()  # not begun
        self._ready: set[int] = set()
        self._placed: dict[int, tuple[HeldVersion, WeightVersion]] = {}
        self._failed: dict[int, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights-fetch")
        self._work: list[Future[None]] = []

    def announce(self, manifest: Manifest, sources: Sequence[str]) -> None:
        """There is a version, and these URLs have it. Returns at once. One that failed is tried again when announced again.

        Raises RunFailed where the digest is not that of the tensors, or a version is announced with other contents than it had.
        """
        if manifest_of(manifest.lineage, manifest.version, manifest.tensors, manifest.scalars).digest != manifest.digest:
            raise RunFailed(f"version {manifest.version} is announced with digest {manifest.digest}, which its tensors do not have")
        with self._lock:
            if manifest.lineage < self._lineage:
                return
            if manifest.lineage > self._lineage:
                self._fetcher.give_up()
                self._lineage = manifest.lineage
                for known in (self._announced, self._ready, self._placed, self._failed):
                    known.clear()
            held = self._chunks.version(manifest.lineage, manifest.version)
            if held and held.manifest.digest != manifest.digest:
                raise RunFailed(
                    f"version {manifest.version} has digest {held.manifest.digest} here, and is announced with {manifest.digest}; "
                    "versions are immutable"
                )
            if held or (self._newest_only and manifest.version < max(self._ready, default=-1)):
                return
            self._announced[manifest.version] = (manifest, tuple(sources))
            self._work = [work for work in self._work if not work.done() or work.exception()]
            self._work.append(self._thread.submit(self._fetch_next))

    def publish(self, weights: WeightVersion) -> None:
        """Raises RunFailed: workers take weights and make none."""
        raise RunFailed(f"version {weights.version} was to be published by a worker; only the learner publishes")

    def newest(self) -> int:
        """The newest version that is here, verified and placed; -1 when there is none."""
        self._raise_defect()
        with self._lock:
            return max(self._held(), default=-1)

    def has(self, version: int) -> bool:
        with self._lock:
            return version in self._held()

    def get(self, version: int) -> WeightVersion:
        """Exactly this version. Raises RunFailed when it has gone or is not here yet; never something newer."""
        self._raise_defect()
        with self._lock:
            if version in self._placed:
                return self._placed[version][1]
            lineage, held = self._lineage, self._held()
            found = self._chunks.version(lineage, version) if version in held else None
            failure = self._failed.get(version)
        if found is None:
            raise RunFailed(
                f"weights of version {version} are not in the store (it holds {sorted(held)})" + (f": {failure}" if failure else "")
            )
        return self._put_in_place(found)

    def settle(self) -> None:
        """Wait until everything announced is here, was overtaken or has failed; each fetch has its deadline."""
        with self._lock:
            pending = list(self._work)
        for work in pending:
            work.result()

    def failure(self, version: int) -> str | None:
        """Why the last attempt at a version failed; None where it did not."""
        with self._lock:
            return self._failed.get(version)

    def close(self) -> None:
        """End the thread; a fetch in progress is given up."""
        with self._lock:
            self._announced.clear()
        self._fetcher.close()
        self._thread.shutdown(wait=True)

    def _held(self) -> list[int]:
        return [version for version in self._ready if self._chunks.version(self._lineage, version)]

    def _raise_defect(self) -> None:
        """What ended the fetching thread's work and is no fault of a source, in the thread of whoever waits for it."""
        with self._lock:
            done = [work for work in self._work if work.done()]
        for work in done:
            work.result()

    def _fetch_next(self) -> None:
        with self._lock:
            if not self._announced:
                return
            version = max(self._announced) if self._newest_only else min(self._announced)
            manifest, sources = self._announced.pop(version)
            overtaken = [other for other in self._announced if other < version] if self._newest_only else []
            for other in overtaken:
                del self._announced[other]
        for other in overtaken:
            self._events.emit(self._role, "weights_overtaken", version=other, by=version)
        if self._chunks.version(manifest.lineage, version):  # announced again while it was fetched
            return
        try:
            held = self._fetcher.fetch(manifest, sources)
            self._chunks.add(held)
            self._put_in_place(held)
        except SlipstreamError as error:
            with self._lock:
                if manifest.lineage == self._lineage:
                    self._failed[version] = str(error)
            self._events.emit(self._role, "weights_failed", version=version, lineage=manifest.lineage, cause=str(error))

    def _put_in_place(self, held: HeldVersion) -> WeightVersion:
        """On the device, beside what is there; tensors that are there already are those."""
        manifest = held.manifest
        with self._lock:
            last = self._placed[max(self._placed)] if self._placed else None
        params = place_policy(held, self._place, _same(held, *last) if last else None)
        weights = WeightVersion(lineage=manifest.lineage, version=manifest.version, params=params, digest=manifest.digest)
        with self._lock:
            if manifest.lineage == self._lineage:
                self._placed[manifest.version] = (held, weights)
                for old in sorted(self._placed)[:-PLACED]:
                    if old != manifest.version:
                        del self._placed[old]
                self._ready.add(manifest.version)
                self._failed.pop(manifest.version, None)
        return weights


def _same(held: HeldVersion, before: HeldVersion, placed: WeightVersion) -> dict[str, jax.Array]:
    """Tensors of a version, by name, that an earlier one has on the device."""
    leaves = placed_leaves(placed.params)
    contents = {content(tensor): leaves[tensor.name] for tensor in before.manifest.tensors}
    return {tensor.name: contents[content(tensor)] for tensor in held.manifest.tensors if content(tensor) in contents}
