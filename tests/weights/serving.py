"""Real servers in this process: honest stores over HTTP and Flight, and peers that break in every way. And what is published to them."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.clock import SystemClock
from slipstream.core.records import WeightVersion
from slipstream.models.lora import Policy
from slipstream.models.parameters import declarations, from_leaves
from slipstream.runtime.processes.weight_server import WeightServer
from slipstream.weights import digest, manifest
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.fetch import Fetcher, FetchRules
from slipstream.weights.manifest import Manifest
from slipstream.weights.published_store import PublishedStore
from slipstream.weights.remote_store import RemoteStore
from slipstream.weights.transports.flight import WeightFlight
from slipstream.weights.transports.opening import open_source
from tests.weights.models import TINY

TOKEN = "secret"
PATIENCE_S = 30.0  # of workers whose peers answer, however loaded the machine


class Recorder:
    """Events in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self.rows.append({"role": role, "kind": kind, **fields})

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        raise AssertionError("no spans are expected here")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == kind]

    def causes(self) -> list[str]:
        return [row["cause"] for row in self.of("weights_fault")]


class Learner:
    """A published store, what it announced, and its URL."""

    def __init__(self, url: str, store: ChunkStore, **settings: Any) -> None:
        self.url, self.chunks, self.announced, self.events = url, store, [], Recorder()
        self.store = PublishedStore(
            chunks=store, keep=4, announce=self.announced.append, events=self.events, clock=SystemClock(), **settings
        )

    def publish(self, version: int, params: Policy, lineage: int = 0) -> Manifest:
        self.store.publish(WeightVersion(lineage=lineage, version=version, params=params))
        self.store.flush()
        return self.announced[-1]


class Worker:
    """A remote store and its own chunks."""

    def __init__(self, token: str = TOKEN, store: ChunkStore | None = None, newest_only: bool = False, **rules: Any) -> None:
        self.chunks, self.events = store or ChunkStore(keep=4), Recorder()
        settings = FetchRules(**{"stall_s": PATIENCE_S, "backoff_s": 0.01, "rounds": 2} | rules)
        self.fetcher = Fetcher(
            store=self.chunks,
            open_source=lambda url: open_source(url, token, settings.stall_s),
            rules=settings,
            clock=SystemClock(),
            events=self.events,
            role="worker",
        )
        self.store = RemoteStore(chunks=self.chunks, fetcher=self.fetcher, events=self.events, role="worker", newest_only=newest_only)

    def take(self, manifest: Manifest, *urls: str) -> bool:
        """Whether the version is here in the end."""
        self.store.announce(manifest, urls)
        self.store.settle()
        return self.store.has(manifest.version)


@contextlib.contextmanager
def learner(**settings: Any) -> Iterator[Learner]:
    store = ChunkStore(keep=4)
    with served(store) as url:
        one = Learner(url, store, **settings)
        with contextlib.closing(one.store):
            yield one


@contextlib.contextmanager
def worker(**settings: Any) -> Iterator[Worker]:
    one = Worker(**settings)
    with contextlib.closing(one.store):
        yield one


@contextlib.contextmanager
def served(store: ChunkStore, token: str = TOKEN) -> Iterator[str]:
    with contextlib.closing(WeightServer(host="127.0.0.1", port=0, token=token, tls=None)) as server:
        server.start(store)
        yield server.url


@contextlib.contextmanager
def served_by_flight(store: ChunkStore, token: str = TOKEN) -> Iterator[str]:
    with WeightFlight(store, token) as server:
        yield f"grpc://127.0.0.1:{server.port}"


@contextlib.contextmanager
def peer(behaviour: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that does `behaviour` with each connection, until the event is set."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def one(line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.recv(65536)
            behaviour(line, over)

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                line, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(line,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        for thread in (accepting, *threads):
            thread.join(10)


def small_chunks(patch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 bytes, so that a tiny model has many."""
    for module in (digest, manifest):
        patch.setattr(module, "CHUNK_BYTES", 64)


def params(seed: int = 0, dtype: Any = "float32") -> Any:
    rng = np.random.default_rng(seed)
    return from_leaves({one.path: jnp.asarray(rng.normal(size=one.shape(TINY)).astype(jnp.dtype(dtype))) for one in declarations(TINY)})


def same_bits(one: Any, other: Any) -> bool:
    """Whether two trees are equal in structure, types and every bit."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
