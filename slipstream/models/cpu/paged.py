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
    q: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array, window: int | jax.Array, scale: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [u, x, h, k], keys [p, g, k, B] and values [p, g, B, k] as pools hold them, tables [u, j], positions [u, x] -> mixed [u, x, h, k],
    the largest score and the sum of exp(score - largest) [u, x, h], all float32. See `cpu.attention`."""
    shapes = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (q.shape, q.shape[:3], q.shape[:3]))
    numbers = (jnp.asarray(tables, jnp.int32), jnp.asarray(positions, jnp.int32), jnp.asarray(window, jnp.int32), jnp.float32(scale))
    mixed, peak, total = jax.ffi.ffi_call(known(attention_kernel, _stored(keys)), shapes)(q.astype(jnp.float32), keys, values, *numbers)
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
