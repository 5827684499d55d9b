"""Brings one version here: what is lacking from whoever has it, every chunk verified. An actor; its threads end with each version.

Sources are tried in a seeded order, another one for each chunk, so that the load is spread; one that failed comes after those that did
not. Every fault is counted and an event with its cause. Nothing waits without a deadline.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.telemetry.events import Events
from slipstream.weights.chunks import ChunkStore, HeldVersion, PatchKey, content, landing_array
from slipstream.weights.digest import chunk_hash, chunks_of
from slipstream.weights.manifest import DTYPES, Chunk, Manifest, Patch
from slipstream.weights.patches import PatchError, apply_patch
from slipstream.weights.transports.source import ChunkSource, Deadline, FaultKind, FetchFault, Landing


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    """How patient a fetcher is, and how wide."""

    connections: int = 2
    """Chunks brought in at once; each has a thread that receives and hashes."""
    stall_s: float = 10.0
    """A source that sends nothing for so long has stalled."""
    floor_bytes_s: float = 1e6
    """A chunk has `stall_s` and the time that it takes at this rate."""
    deadline_s: float = 600.0
    """A version that is not here after so long is given up."""
    rounds: int = 5
    """Times that all sources are tried for a chunk."""
    backoff_s: float = 0.5
    """Pause after the first round; doubled after each."""
    patches: bool = True
    """Take patches where the publisher offers them and their base is here."""
    seed: int = 0
    """Of the order in which sources are tried; different for every worker."""


class VersionUnavailable(RunFailed):
    """No source delivered the version. The message names the last cause."""


class _Stopped(Exception):
    """Another thread of the same version failed, or the fetcher is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A chunk and all places that it goes to."""

    chunk: Chunk
    word_bytes: int
    places: list[memoryview]


@dataclass(slots=True, kw_only=True)
class _Job:
    """One version on its way. Changed by several threads, each field under the fetcher's lock."""

    manifest: Manifest
    urls: tuple[str, ...]
    deadline: Deadline
    stopped: threading.Event = field(default_factory=threading.Event)
    strikes: Counter[str] = field(default_factory=Counter[str])
    patches: dict[PatchKey, bytes] = field(default_factory=dict[PatchKey, bytes])
    figures: Counter[str] = field(default_factory=Counter[str])  # chunks and bytes, by how they came


class Fetcher:
    """Fetches into, and knows what is there from, one store. `fetch` is called by one thread."""

    def __init__(
        self, *, store: ChunkStore, open_source: Callable[[str], ChunkSource], rules: FetchRules, clock: Clock, events: Events, role: str
    ) -> None:
        self._store, self._open_source, self._rules = store, open_source, rules
        self._clock, self._events, self._role = clock, events, role
        self._sources: dict[str, ChunkSource] = {}
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._closed = False
        self.counters: Counter[str] = Counter()  # faults by kind, and what came how

    def fetch(self, manifest: Manifest, urls: Sequence[str]) -> HeldVersion:
        """The version, whole and verified, in fresh memory; tensors that are here already are those. Raises VersionUnavailable."""
        started = self._clock.now_s()
        job = _Job(manifest=manifest, urls=tuple(urls), deadline=Deadline(self._clock, self._rules.deadline_s))
        with self._lock:
            self._job = job
            if self._closed:
                job.stopped.set()
        arrays, wanted = self._lacking(job)
        self._obtain_all(job, wanted)
        seconds = self._clock.now_s() - started
        self.counters.update(job.figures)
        self._events.emit(
            self._role, "weights_fetched", version=manifest.version, lineage=manifest.lineage, seconds=round(seconds, 6), **job.figures
        )
        return HeldVersion(manifest=manifest, arrays=arrays, patches=job.patches)

    def give_up(self) -> None:
        """A fetch in progress fails soon."""
        with self._lock:
            if self._job:
                self._job.stopped.set()

    def close(self) -> None:
        """A fetch in progress fails soon; there is none after it."""
        with self._lock:
            self._closed = True
            sources = list(self._sources.values())
            if self._job:
                self._job.stopped.set()
        for source in sources:
            source.close()

    def _lacking(self, job: _Job) -> tuple[dict[str, np.ndarray], list[_Wanted]]:
        """The arrays of the version, fresh ones still empty, and the chunks that go into those."""
        here = self._store.tensors()
        arrays: dict[str, np.ndarray] = {}
        wanted: dict[str, _Wanted] = {}
        for tensor in job.manifest.tensors:
            same = here.get(content(tensor))
            if same is not None:
                arrays[tensor.name] = same
                job.figures["reused_bytes"] += tensor.bytes
                continue
            arrays[tensor.name] = landing_array(tensor.bytes)
            for chunk, place in zip(tensor.chunks, chunks_of(arrays[tensor.name].data), strict=True):
                one = wanted.setdefault(chunk.hash, _Wanted(chunk=chunk, word_bytes=DTYPES[tensor.dtype], places=[]))
                one.places.append(place)
        return arrays, list(wanted.values())

    def _obtain_all(self, job: _Job, wanted: Sequence[_Wanted]) -> None:
        with ThreadPoolExecutor(self._rules.connections, thread_name_prefix="weights") as pool:
            futures = [pool.submit(self._obtain, job, one) for one in wanted]
            wait(futures, return_when=FIRST_EXCEPTION)
            job.stopped.set()
        errors = [error for future in futures if (error := future.exception())]
        cause = next((error for error in errors if not isinstance(error, _Stopped)), None)
        if cause:
            raise cause
        if errors:
            raise VersionUnavailable(f"version {job.manifest.version}: the fetch was stopped")

    def _obtain(self, job: _Job, one: _Wanted) -> None:
        first, *others = one.places
        here = self._store.chunk(one.chunk.hash)
        if here is not None:
            first[:] = here
            self._count(job, reused_bytes=len(first))
        elif not (one.chunk.patch and self._rules.patches and self._patched(job, one, one.chunk.patch)):
            self._download(job, f"chunk {one.chunk.hash}", first, lambda source, *at: source.chunk(one.chunk.hash, *at), one.chunk.hash)
            self._count(job, chunks=1, chunk_bytes=len(first))
        for other in others:
            other[:] = first

    def _patched(self, job: _Job, one: _Wanted, patch: Patch) -> bool:
        """Whether the chunk could be made from one that is here."""
        base, key = self._store.chunk(patch.base), (one.chunk.hash, patch.base)
        if base is None:
            return False
        found = bytearray(patch.bytes)
        try:
            self._download(job, f"patch {one.chunk.hash}", memoryview(found), lambda source, *at: source.patch(key, *at), None)
            apply_patch(memoryview(found), base, one.word_bytes, one.places[0])
        except VersionUnavailable:
            return False
        except PatchError as error:
            self._fault(job, "", f"patch {one.chunk.hash}", FetchFault(FaultKind.CORRUPT, str(error)))
            return False
        if chunk_hash(one.places[0]) != one.chunk.hash:
            self._fault(job, "", f"patch {one.chunk.hash}", FetchFault(FaultKind.CORRUPT, "it makes other bytes than the chunk's"))
            return False
        with self._lock:
            job.patches[key] = bytes(found)
        self._count(job, patches=1, patch_bytes=len(found), patched_bytes=len(one.places[0]))
        return True

    def _download(
        self, job: _Job, what: str, into: memoryview, read: Callable[[ChunkSource, Landing, Deadline], None], hashed: str | None
    ) -> None:
        """Fill `into` from the first source that delivers. A patch (no hash) is asked for once of each: the whole chunk is a way out,
        and a source that got the whole chunk has no patch, which is no fault."""
        last = "the sources are slow" if job.urls else "no source was named"
        for number in range(self._rules.rounds if hashed else 1):
            sources = self._order(job, what)
            for url in sources:
                self._check(job)
                landing = Landing(into)
                try:
                    read(self._source(url), landing, self._chunk_deadline(job, len(into), last))
                    if hashed and landing.hash() != hashed:
                        raise FetchFault(FaultKind.CORRUPT, f"bytes with hash {landing.hash()} where {hashed} was asked for")
                    return
                except FetchFault as fault:
                    if job.stopped.is_set():
                        raise _Stopped from fault
                    last = f"{url}: {fault.kind}, {fault}"
                    if hashed or fault.kind is not FaultKind.GONE:
                        self._fault(job, url, what, fault)
            if hashed and number + 1 < self._rules.rounds:
                job.stopped.wait(min(self._rules.backoff_s * 2**number, self._left_s(job, last)))
        raise VersionUnavailable(f"version {job.manifest.version}, {what}: none of {len(job.urls)} sources delivers; the last: {last}")

    def _order(self, job: _Job, what: str) -> list[str]:
        """Those with the fewest faults first; among them a permutation that is a function of seed, thing and source."""
        with self._lock:
            strikes = dict(job.strikes)
        draw = {url: hashlib.sha256(f"{self._rules.seed} {what} {url}".encode()).digest() for url in job.urls}
        return sorted(job.urls, key=lambda url: (strikes.get(url, 0), draw[url]))

    def _source(self, url: str) -> ChunkSource:
        with self._lock:
            if url not in self._sources:
                self._sources[url] = self._open_source(url)
            return self._sources[url]

    def _chunk_deadline(self, job: _Job, size: int, last: str) -> Deadline:
        return Deadline(self._clock, min(self._rules.stall_s + size / self._rules.floor_bytes_s, self._left_s(job, last)))

    def _left_s(self, job: _Job, last: str) -> float:
        try:
            return job.deadline.left_s()
        except FetchFault as fault:
            raise VersionUnavailable(f"version {job.manifest.version}: {fault}; the last cause: {last}") from fault

    def _check(self, job: _Job) -> None:
        if job.stopped.is_set():
            raise _Stopped

    def _fault(self, job: _Job, url: str, what: str, fault: FetchFault) -> None:
        with self._lock:
            if url:
                job.strikes[url] += 1
            self.counters[f"fault_{fault.kind}"] += 1
        fields: Mapping[str, object] = {"version": job.manifest.version, "source": url, "what": what, "cause": str(fault.kind)}
        self._events.emit(self._role, "weights_fault", **fields, detail=str(fault))

    def _count(self, job: _Job, **figures: int) -> None:
        with self._lock:
            job.figures.update(figures)
