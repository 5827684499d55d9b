"""Attention over pages, and writing into them, by our own kernels, where the device is a CPU."""

import jax
import jax.numpy as jnp

from slipstream.models.cpu import packed
from slipstream.models.cpu.attention import LANES, attention_kernel
from slipstream.models.cpu.compiled import known
from slipstream.models.cpu.writing import writing_kernel


def attends(width: int, page_tokens: int) -> bool:
    """Whether heads of this width over pages of this length are the kernel's."""
    return packed.available() and width % LANES == 0 and page_tokens % LANES == 0


def attend(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tables: jax.Array,
    positions: jax.Array,
    window: int | jax.Array,
    scale: float,
    softcap: float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [u, x, h, k], keys [p, g, k, B] and values [p, g, B, k] as pools hold them, tables [u, j], positions [u, x] -> mixed [u, x, h, k]
    of q's type, and float32 the largest score and the sum of exp(score - largest) [u, x, h]. See `cpu.attention`."""
    kernel = known(attention_kernel, q.dtype.name, _stored(keys))
    of_rows = jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
    where = (jnp.asarray(array, jnp.int32) for array in (tables, positions, window))
    call = jax.ffi.ffi_call(kernel, (jax.ShapeDtypeStruct(q.shape, q.dtype), of_rows, of_rows))
    mixed, peak, total = call(q, keys, values, *where, jnp.float32(scale), jnp.float32(softcap or 0.0))
    return mixed, peak, total


def write(
    keys: jax.Array, values: jax.Array, layer: int | jax.Array, new: tuple[jax.Array, jax.Array], pages: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Pools keys [L, p, g, k, B] and values [L, p, g, B, k] with `new` ones [n, g, k] of their type in pages [n] of a layer, at positions
    [n].

    In place where nobody else has the pools.
    """
    shapes = tuple(jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (keys, values))
    call = jax.ffi.ffi_call(known(writing_kernel, _stored(keys)), shapes, input_output_aliases={0: 0, 1: 1})
    where = (jnp.asarray(array, jnp.int32) for array in (pages, positions, layer))
    keys, values = call(keys, values, *new, *where)
    return keys, values


def _stored(pool: jax.Array) -> str:
    return "bfloat16" if pool.dtype in (jnp.uint16, jnp.bfloat16) else pool.dtype.name
