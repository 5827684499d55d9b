"""The other process of `slipstream bench weights`: takes versions as a sampler would, and bytes as they come. Called by that benchmark."""

import contextlib
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

PATIENCE_S = 300.0
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The parent's end."""

    pipe: Connection
    address: tuple[str, int]  # where it takes bytes as they come

    def ask(self, *request: Any) -> Any:
        """What the worker answers. Raises TimeoutError, or EOFError where it has died."""
        self.pipe.send(request)
        if not self.pipe.poll(PATIENCE_S):
            raise TimeoutError(f"the worker did not answer {request[0]} within {PATIENCE_S:.0f} s")
        return self.pipe.recv()

    def receive(self, data: memoryview, *, fresh: bool, hashed: bool) -> float:
        """Seconds in which the worker gets `data` by sendfile from an anonymous file, in memory where the machine has such.

        Into memory that it touches for the first time (`fresh`), as every version must be; and hashing what comes.
        """
        directory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(data)
            file.flush()
            self.ask("room", len(data), fresh, hashed)
            with socket.create_connection(self.address) as line:
                started, sent = time.perf_counter(), 0
                while sent < len(data):
                    sent += os.sendfile(line.fileno(), file.fileno(), sent, len(data) - sent)
                line.recv(1)  # all of it has arrived
                return time.perf_counter() - started


@contextlib.contextmanager
def started(connections: int) -> Iterator[Worker]:
    """A worker process of its own, with its own interpreter."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_work, args=(other, connections), daemon=True)
    process.start()
    try:
        yield Worker(pipe=pipe, address=pipe.recv())
    finally:
        pipe.send(("end",))
        process.join(10)
        process.kill()


def _work(pipe: Connection, connections: int) -> None:
    """Serve requests until `end`."""
    import jax
    import numpy as np

    store = None
    jax.block_until_ready(jax.numpy.zeros(1))  # what a process does once is no part of a fetch
    _store(connections)[1].close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname())
        while True:
            match pipe.recv():
                case ("end",):
                    break
                case ("reset",):
                    if store:
                        store[1].close()
                    store = _store(connections)
                    pipe.send(None)
                case ("room", size, fresh, hashed):
                    room = np.empty(size, np.uint8) if fresh else np.ones(size, np.uint8)
                    pipe.send(None)
                    _fill(listener, room.data, hashed)
                case ("take", manifest, url) if store:
                    pipe.send(_take(store, manifest, url))
    if store:
        store[1].close()


def _store(connections: int) -> Any:
    from slipstream.core.clock import SystemClock
    from slipstream.telemetry.events import NullEvents
    from slipstream.weights.chunks import ChunkStore
    from slipstream.weights.fetch import Fetcher, FetchRules
    from slipstream.weights.remote_store import RemoteStore
    from slipstream.weights.transports.opening import open_source

    chunks = ChunkStore(keep=2)
    rules = FetchRules(connections=connections)
    fetcher = Fetcher(
        store=chunks,
        open_source=lambda url: open_source(url, "bench", rules.stall_s),
        rules=rules,
        clock=SystemClock(),
        events=NullEvents(),
        role="worker",
    )
    return fetcher, RemoteStore(chunks=chunks, fetcher=fetcher, events=NullEvents(), role="worker")


def _take(store: Any, data: bytes, url: str) -> dict[str, Any]:
    """Fetch, verify and place a version; how long that took and what came."""
    import jax

    from slipstream.weights.manifest import decode_manifest

    fetcher, remote = store
    before = dict(fetcher.counters)
    began = time.perf_counter()
    manifest = decode_manifest(data)
    remote.announce(manifest, [url])
    remote.settle()
    weights = remote.get(manifest.version)
    jax.block_until_ready(weights.params)
    seconds = time.perf_counter() - began
    came = {name: fetcher.counters[name] - before.get(name, 0) for name in ("chunk_bytes", "patch_bytes")}
    return {"seconds": seconds, "digest": weights.digest, **came}


def _fill(listener: socket.socket, room: memoryview, hashed: bool) -> None:
    from slipstream.weights.digest import hasher

    line, _ = listener.accept()
    found, filled = hasher(), 0
    with line:
        while filled < len(room):
            count = line.recv_into(room[filled : filled + PIECE_BYTES])
            if hashed:
                found.update(room[filled : filled + count])
            filled += count
        line.sendall(b"x")
