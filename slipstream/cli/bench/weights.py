"""`slipstream bench weights`: from publishing to verified weights in another process, beside what sendfile, memcpy and hashing allow."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.models.parameters import Params
    from slipstream.models.spec import ModelSpec
    from slipstream.weights.chunks import ChunkStore

RATES = (1e-6, 1e-5, 1e-4)
LEAST_FACTOR = 20.0  # of the patches at the smallest rate
TOKEN = "bench"


def weights_command(
    layers: Annotated[int, typer.Option(min=1, help="Layers of a decoder shaped like SmolLM2-135M, which has 30.")] = 30,
    repeats: Annotated[int, typer.Option(min=1, help="Of every measurement; the best counts.")] = 3,
    connections: Annotated[int, typer.Option(min=1, help="Chunks that the worker brings in at once.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights and updates.")] = 0,
) -> None:
    """Seconds and GB/s of full and patched versions over HTTP and Flight, and how much smaller patches are at three learning rates.

    An update moves every weight by the learning rate, up or down: the most that AdamW does, and what its first step does.

    Example: slipstream bench weights
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.weights_worker import started

    spec = _spec(layers)
    wide, params = _random(spec, seed)
    rows: list[dict[str, Any]] = []
    with started(connections) as worker:
        limits = _limits(worker, _bytes(params), repeats)
        print("  ".join(f"{name} {value}" for name, value in limits.items()), file=sys.stderr)
        for rate in (None, *RATES):
            after = params if rate is None else _moved(wide, spec, rate, seed)
            for transport in ("http", "flight"):
                tries = [_measure(worker, transport, params, None if rate is None else after) for _ in range(repeats)]
                best = min(tries, key=lambda row: row["seconds"])
                rate_of_fetch = best["fetch_gigabytes_per_second"]
                best["fetch_of_sendfile"] = round(rate_of_fetch / limits["sendfile"], 3)
                best["fetch_of_verified_sendfile"] = round(rate_of_fetch / limits["sendfile_to_fresh_memory_hashed"], 3)
                rows.append({"version": "full" if rate is None else "patched", "rate": rate, "transport": transport} | best)
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), file=sys.stderr)
    figures = {"parameters": _bytes(params) // 2, "bytes": _bytes(params), "connections": connections}
    print(json.dumps({"benchmark": "weights", **figures, "limits_gigabytes_per_second": limits, "rows": rows, "machine": machine()}))
    small = min(row["factor"] for row in rows if row["rate"] == RATES[0])
    if small < LEAST_FACTOR:
        print(f"patches at rate {RATES[0]:g} are {small} times smaller; at least {LEAST_FACTOR:g} expected", file=sys.stderr)
        raise typer.Exit(1)


def _spec(layers: int) -> "ModelSpec":
    from slipstream.models.spec import ModelSpec, RopeSpec

    return ModelSpec(
        vocab=49_152,
        d_model=576,
        layers=layers,
        heads=9,
        kv_heads=3,
        head_dim=64,
        d_ff=1536,
        rope=RopeSpec(theta=10_000.0),
        norm_eps=1e-5,
        tied=True,
        context=2048,
    )


def _random(spec: "ModelSpec", seed: int) -> tuple[dict[tuple[str, ...], Any], "Params"]:
    """Normal weights, float32 by path as an optimizer holds them, and rounded to bfloat16."""
    import math

    import numpy as np

    from slipstream.models.parameters import declarations

    rng = np.random.default_rng(seed)
    wide = {}
    for one in declarations(spec):
        inputs = math.prod(spec.axis_size(axis) for axis in one.fan_in)
        wide[one.path] = np.float32(inputs**-0.5) * rng.standard_normal(one.shape(spec), np.float32)
    return wide, _rounded(wide)


def _rounded(wide: dict[tuple[str, ...], Any]) -> "Params":
    import jax.numpy as jnp

    from slipstream.models.parameters import from_leaves

    return from_leaves({path: jnp.asarray(array.astype(jnp.bfloat16)) for path, array in wide.items()})


def _moved(wide: dict[tuple[str, ...], Any], spec: "ModelSpec", rate: float, seed: int) -> "Params":
    import numpy as np

    rng = np.random.default_rng([seed, 1])

    def moved(array: Any) -> Any:
        signs = np.unpackbits(rng.integers(0, 256, -(-array.size // 8), np.uint8), count=array.size).reshape(array.shape)
        return array + np.float32(rate) * (2 * signs.astype(np.float32) - 1)

    return _rounded({path: moved(array) for path, array in wide.items()})


def _measure(worker: Any, transport: str, params: "Params", after: "Params | None") -> dict[str, Any]:
    """One publication, in full, or (`after`) patched from `params`; timed from before it until the worker has verified and placed it."""
    from slipstream.core.clock import SystemClock
    from slipstream.core.errors import RunFailed
    from slipstream.core.records import WeightVersion
    from slipstream.telemetry.events import NullEvents
    from slipstream.weights.chunks import ChunkStore
    from slipstream.weights.manifest import encode_manifest
    from slipstream.weights.published_store import PublishedStore

    worker.ask("reset")
    chunks, manifests = ChunkStore(keep=2), []
    store = PublishedStore(chunks=chunks, keep=2, announce=manifests.append, events=NullEvents(), clock=SystemClock())
    with contextlib.closing(store), _serving(transport, chunks) as url:
        seconds, published, reply = 0.0, 0.0, {}
        for version, tree in enumerate((params,) if after is None else (params, after)):
            started = time.perf_counter()
            store.publish(WeightVersion(lineage=0, version=version, params=tree))
            store.flush()
            published = time.perf_counter() - started
            reply = worker.ask("take", encode_manifest(manifests[-1]), url)
            seconds = time.perf_counter() - started
            if reply["digest"] != manifests[-1].digest:
                raise RunFailed(f"the worker has weights {reply['digest']}, and {manifests[-1].digest} were published")
    sent = reply["chunk_bytes"] + reply["patch_bytes"]
    total = manifests[-1].bytes
    return {
        "seconds": round(seconds, 4),
        "publish_seconds": round(published, 4),
        "fetch_seconds": round(reply["seconds"], 4),
        "gigabytes_per_second": round(total / seconds / 1e9, 3),
        "fetch_gigabytes_per_second": round(total / reply["seconds"] / 1e9, 3),
        "sent_bytes": sent,
        "factor": round(total / sent, 1),
    }


@contextlib.contextmanager
def _serving(transport: str, chunks: "ChunkStore") -> Iterator[str]:
    if transport == "http":
        from slipstream.runtime.processes.weight_server import WeightServer

        with contextlib.closing(WeightServer(host="127.0.0.1", port=0, token=TOKEN, tls=None)) as server:
            server.start(chunks)
            yield server.url
    else:
        from slipstream.weights.transports.flight import WeightFlight

        with WeightFlight(chunks, TOKEN) as server:
            yield f"grpc://127.0.0.1:{server.port}"


def _limits(worker: Any, size: int, repeats: int) -> dict[str, float]:
    """GB/s of what a version of so many bytes must go through: a file in memory sent to the worker (as it is, into memory that was never
    touched, and hashed by the thread that receives it), a copy, a hash."""
    import numpy as np

    from slipstream.weights.digest import chunk_hash

    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    copy = source.copy()
    ways = {
        "sendfile": lambda: worker.receive(source.data, fresh=False, hashed=False),
        "sendfile_to_fresh_memory": lambda: worker.receive(source.data, fresh=True, hashed=False),
        "sendfile_to_fresh_memory_hashed": lambda: worker.receive(source.data, fresh=True, hashed=True),
        "memcpy": lambda: _timed(lambda: np.copyto(copy, source)),
        "hash": lambda: _timed(lambda: chunk_hash(source.data)),
    }
    return {name: round(size / min(way() for _ in range(repeats + 1)) / 1e9, 3) for name, way in ways.items()}


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _bytes(params: "Params") -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))
