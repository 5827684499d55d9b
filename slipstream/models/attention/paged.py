"""Attention of single query tokens over a cache of pages: page j of a sequence holds its positions j B .. j B + B - 1.

Rows of any kind mix in one call: a decoding sequence is one row, a chunk of a prompt is several. Sequences that begin alike
may name the same pages. What a row does not see is never felt, not even NaN: a page keeps what its last user left there.

Letters: n rows, p pages of the pool, B tokens of a page, j pages of a row's table, g key/value heads, r query heads of each,
h = g r, k head width.
"""

import jax
import jax.numpy as jnp

from slipstream.models.attention.dense import attend
from slipstream.models.attention.rule import MASKED, AttentionRule, capped, within


def gathered(
    q: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array, window: int | jax.Array, rule: AttentionRule
) -> jax.Array:
    """q [n, h, k] over pools keys and values [p, B, g, k] by tables [n, j], each at its position [n] -> [n, h, k].

    Copies every row's pages together, then attends at once: the oracle, and best where memory is plentiful.
    """
    n, blocks = tables.shape
    page = keys.shape[1]
    k, v = (pool[tables].reshape(n, blocks * page, *pool.shape[2:]) for pool in (keys, values))
    allowed = within(positions[:, None], jnp.arange(blocks * page)[None], window)
    v = jnp.where(allowed[..., None, None], v, 0)
    return attend(q[:, None], k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), allowed[:, None], rule)[:, 0]


def by_page(
    q: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array, window: int | jax.Array, rule: AttentionRule
) -> jax.Array:
    """The same with an online softmax over one page of each row at a time; stops at the longest row's last page."""
    n, h, width = q.shape
    page, g = keys.shape[1], keys.shape[2]
    grouped = q.reshape(n, g, h // g, width)

    def one_page(block: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]):
        peak, total, mixed = carry
        k, v = keys[tables[:, block]], values[tables[:, block]]
        allowed = within(positions[:, None], block * page + jnp.arange(page)[None], window)
        v = jnp.where(allowed[..., None, None], v, 0)
        products = jnp.einsum("ngrk,nBgk->ngrB", grouped, k, preferred_element_type=jnp.float32)
        scores = jnp.where(allowed[:, None, None], capped(products, rule), MASKED)
        higher = jnp.maximum(peak, scores.max(axis=-1))
        weights = jnp.where(allowed[:, None, None], jnp.exp(scores - higher[..., None]), 0.0)
        shrink = jnp.exp(peak - higher)
        added = jnp.einsum("ngrB,nBgk->ngrk", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return higher, total * shrink + weights.sum(axis=-1), mixed * shrink[..., None] + added

    start = (jnp.full(grouped.shape[:3], MASKED), jnp.zeros(grouped.shape[:3]), jnp.zeros(grouped.shape))
    _, total, mixed = jax.lax.fori_loop(0, positions.max() // page + 1, one_page, start)
    return (mixed / total[..., None]).reshape(q.shape).astype(q.dtype)


def write_pages(pool: jax.Array, layer: int | jax.Array, new: jax.Array, tables: jax.Array, positions: jax.Array) -> jax.Array:
    """`pool` [L, p, B, g, k] with the rows' new keys or values [n, g, k] of a layer at their positions [n]."""
    page = pool.shape[2]
    places = jnp.take_along_axis(tables, (positions // page)[:, None], axis=1)[:, 0]
    return pool.at[layer, places, positions % page].set(new.astype(pool.dtype))
