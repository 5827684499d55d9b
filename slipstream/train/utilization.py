"""Model FLOP utilisation: the useful operations of a learner step, and what a device reaches in a large matrix product.

Useful operations are those of the matrices: 2 an entry that a position meets, and twice as many again for its gradients. The output
matrix is met at trained positions only; attention's own products, padding and recomputed layers count nothing (PaLM, appendix B,
counts the same but for attention).
"""

import time
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp

from slipstream.models.spec import ModelSpec
from slipstream.train.cost import model_cost
from slipstream.train.packing import Microbatch

FULL, ADAPTERS = 3.0, 2.0  # times the forward pass: gradients of activations and of weights, or of activations alone
MEASURED = 5  # products; the fastest counts


def useful_flops(spec: ModelSpec, microbatches: Sequence[Microbatch], passes: float = FULL) -> float:
    """Of one pass over the microbatches; `passes` is FULL or ADAPTERS."""
    output = 2.0 * spec.vocab * spec.d_model
    hidden = model_cost(spec, whole_rows=False).linear - output
    positions = sum(int((batch.segment_ids != 0).sum()) for batch in microbatches)
    trained = sum(int((batch.loss_mask > 0).sum()) for batch in microbatches)
    return passes * (hidden * positions + output * trained)


@cache
def product_rate(dtype: str) -> float:
    """FLOP/s of one default device in square matrix products of `dtype`, measured once a process."""
    size = 1_024 if jax.default_backend() == "cpu" else 8_192
    square = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    times: list[float] = []
    for _ in range(MEASURED):
        started = time.perf_counter()
        jax.block_until_ready(product(square, square))
        times.append(time.perf_counter() - started)
    return 2.0 * size**3 / min(times)
