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
from slipstream.models.numerics import FAST, Numerics


def gathered(
    q: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array, window: int | jax.Array, rule: AttentionRule
) -> jax.Array:
    """q [n, h, k] over pools keys and values [p, B, g, k] by tables [n, j], each at its position [n] -> [n, h, k].

    Copies every row's pages together, then attends at once: the oracle, and best where memory is plentiful.
    """
    n, blocks = tables.shape
    page = keys.shape[1]
    k, v = (_numbers(as_stored(pool)[tables], q.dtype).reshape(n, blocks * page, *pool.shape[2:]) for pool in (keys, values))
    allowed = within(positions[:, None], jnp.arange(blocks * page)[None], window)
    v = jnp.where(allowed[..., None, None], v, 0)
    return attend(q[:, None], k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), allowed[:, None], rule)[:, 0]


def by_page(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tables: jax.Array,
    positions: jax.Array,
    window: int | jax.Array,
    rule: AttentionRule,
    numerics: Numerics = FAST,
) -> jax.Array:
    """The same with an online softmax over one page of each row at a time; stops at the longest row's last page."""
    mixed, _ = units_by_page(q[:, None], keys, values, tables, positions[:, None], window, rule, numerics)
    return mixed[:, 0]


def units_by_page(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tables: jax.Array,
    positions: jax.Array,
    window: int | jax.Array,
    rule: AttentionRule,
    numerics: Numerics = FAST,
) -> tuple[jax.Array, jax.Array]:
    """`by_page` for units of x rows that share a table: q [u, x, h, k], tables [u, j], positions [u, x] -> [u, x, h, k].

    Also the log-sum-exp of the scores, float32 [u, x, h]. In exact mode neither the number of units nor further pages that a row
    does not see change its bits: a page unseen multiplies by exp(0) = 1 and adds 0.
    """
    u, x, h, width = q.shape
    page, g, seal = keys.shape[1], keys.shape[2], numerics.seal
    grouped = seal(q.reshape(u, x, g, h // g, width).swapaxes(1, 2).reshape(u, g, -1, width))  # [u, g, m, k], m = x r
    keys, values = as_stored(keys), as_stored(values)

    def one_page(block: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]):
        peak, total, mixed = carry
        k, v = (_numbers(pool[tables[:, block]], q.dtype) for pool in (keys, values))
        allowed = within(positions[:, :, None], block * page + jnp.arange(page), window)  # [u, x, B]
        v = jnp.where(allowed.any(axis=1)[..., None, None], v, 0)
        seen = jnp.repeat(allowed, h // g, axis=1)[:, None]
        products = seal(jnp.einsum("ugmk,uBgk->ugmB", grouped, seal(k), preferred_element_type=jnp.float32))
        scores = jnp.where(seen, capped(products, rule, numerics), MASKED)
        higher = jnp.maximum(peak, scores.max(axis=-1, keepdims=True))
        weights = seal(jnp.where(seen, numerics.exp(seal(scores - higher)), 0.0))
        shrink = numerics.exp(seal(peak - higher))
        added = seal(jnp.einsum("ugmB,uBgk->ugmk", seal(weights.astype(v.dtype)), seal(v), preferred_element_type=jnp.float32))
        return higher, seal(seal(total * shrink) + numerics.total(weights)), seal(seal(mixed * shrink) + added)

    start = (jnp.full((u, g, grouped.shape[2], 1), MASKED), jnp.zeros((u, g, grouped.shape[2], 1)), jnp.zeros(grouped.shape))
    peak, total, mixed = jax.lax.fori_loop(0, positions.max() // page + 1, one_page, start)

    def back(array: jax.Array) -> jax.Array:
        return array.reshape(u, g, x, h // g, -1).swapaxes(1, 2).reshape(u, x, h, -1)

    return back(seal(seal(mixed / total).astype(q.dtype))), back(peak + jnp.log(total))[..., 0]


def page_of(tables: jax.Array, positions: jax.Array, page_tokens: int) -> jax.Array:
    """The page [n] in which each row's position [n] lies, by tables [n, j]."""
    return jnp.take_along_axis(tables, (positions // page_tokens)[:, None], axis=1)[:, 0]


def write_pages(pool: jax.Array, layer: int | jax.Array, new: jax.Array, pages: jax.Array, positions: jax.Array) -> jax.Array:
    """`pool` [L, p, B, g, k], as stored, with a layer's new keys or values [n, g, k] in the rows' pages [n], at their positions [n]."""
    stored = as_stored(new.astype(dtype_of(pool)))
    assert stored.dtype == pool.dtype, "pools of bfloat16 hold bits (`as_stored`)"
    return pool.at[layer, pages, positions % pool.shape[2]].set(stored)


def as_stored(numbers: jax.Array) -> jax.Array:
    """Keys or values as pools hold them: bfloat16 as its bits, because XLA CPU widens a whole pool of it to move a few pages."""
    return jax.lax.bitcast_convert_type(numbers, jnp.uint16) if numbers.dtype == jnp.bfloat16 else numbers


def dtype_of(pool: jax.Array) -> jnp.dtype:
    """Of the numbers that a pool holds."""
    return jnp.dtype(jnp.bfloat16) if pool.dtype == jnp.uint16 else pool.dtype


def _numbers(stored: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return jax.lax.bitcast_convert_type(stored, dtype) if stored.dtype == jnp.uint16 else stored
