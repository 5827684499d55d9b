"""What this machine can do at best, measured in the same run as what is compared with it: matrix products and memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of the default device."""

    flops_per_second: dict[str, float]  # of a large matrix product, by dtype
    bytes_per_second: float  # read by a sum over a large array

    def figures(self) -> dict[str, Any]:
        """As benchmarks print them."""
        rates = {name: round(rate / 1e9, 1) for name, rate in self.flops_per_second.items()}
        return {"gflops_per_second": rates, "gigabytes_per_second": round(self.bytes_per_second / 1e9, 2)}

    def seconds(self, flops: float, bytes_moved: float, dtype: str) -> float:
        """The least time for work of so many operations and so much memory (the roofline)."""
        return max(flops / self.flops_per_second[dtype], bytes_moved / self.bytes_per_second)


def best_seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The shortest of several runs after one that warms up; waits for the device."""
    import jax

    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return min(times)


def measure_limits(sizes: Sequence[int] = (512, 1024, 2048), megabytes: int = 256) -> Limits:
    """The fastest of square products of `sizes`, XLA's and ours, in float32 and bfloat16, and a sum over `megabytes` of float32."""
    import jax
    import jax.numpy as jnp

    from slipstream.models.cpu import packed

    def rate(size: int, dtype: str) -> float:
        square = jnp.ones((size, size), dtype)
        plain, ours = jax.jit(jnp.matmul), jax.jit(packed.product)
        seconds = [best_seconds(lambda: plain(square, square))]
        if packed.available():
            matrix = packed.pack(square)
            seconds.append(best_seconds(lambda: ours(square, matrix)))
        return 2 * size**3 / min(seconds)

    rates = {dtype: max(rate(size, dtype) for size in sizes) for dtype in ("float32", "bfloat16")}
    array = jnp.ones(megabytes * 2**18, jnp.float32)
    total = jax.jit(jnp.sum)
    return Limits(flops_per_second=rates, bytes_per_second=array.nbytes / best_seconds(lambda: total(array)))
