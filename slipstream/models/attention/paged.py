"""Attention of single query tokens over a cache of pages: page j of a sequence holds its positions j B .. j B + B - 1.

Rows of any kind mix in one call: a decoding sequence is one row, a chunk of a prompt is several. Sequences that begin alike
may name the same pages. What a row does not see is never felt, not even NaN: a page keeps what its last user left there.

Keys lie as [g, k, B] in a page and values as [g, B, k], as the two products read them: nothing is turned over while decoding.

Letters: n rows, p pages of the pool, B tokens of a page, j pages of a row's table, g key/value heads, r query heads of each,
h = g r, k head width.
"""

import jax
import jax.numpy as jnp

from slipstream.models.attention.dense import attend
from slipstream.models.attention.rule import MASKED, AttentionRule, capped, within
from slipstream.models.cpu import packed
from slipstream.models.cpu import paged as own
from slipstream.models.numerics import FAST, Numerics

TOGETHER = 8  # rows that walk their pages together on a CPU


def gathered(
    q: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array, window: int | jax.Array, rule: AttentionRule
) -> jax.Array:
    """q [n, h, k] over pools keys [p, g, k, B] and values [p, g, B, k] by tables [n, j], each at its position [n] -> [n, h, k].

    Copies every row's pages together, then attends at once: the oracle, and best where memory is plentiful.
    """
    n, blocks = tables.shape
    _, g, page, width = values.shape
    allowed = within(positions[:, None], jnp.arange(blocks * page)[None], window)
    k, v = (numbers(as_stored(pool)[tables], q.dtype).swapaxes(1, 2) for pool in (keys, values))
    k, v = k.swapaxes(2, 3).reshape(n, g, width, -1), v.reshape(n, g, -1, width)
    v = jnp.where(allowed[:, None, :, None], v, 0)
    return attend(q[:, None], k, v, allowed[:, None], rule)[:, 0]


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
    """The same with an online softmax over one page of each row at a time; stops at the longest row's last page.

    On a CPU a few rows go together, so that rows in the order of their lengths walk hardly more pages than they have.
    """

    def walk(rows: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        q, tables, positions = rows
        return units_by_page(q[:, None], keys, values, tables, positions[:, None], window, rule, numerics)[0][:, 0]

    n = q.shape[0]
    if _own_kernel(values) or n % TOGETHER or n == TOGETHER or tables.shape[1] == 1 or jax.default_backend() != "cpu":
        return walk((q, tables, positions))
    some = jax.tree.map(lambda array: array.reshape(-1, TOGETHER, *array.shape[1:]), (q, tables, positions))
    return jax.lax.map(walk, some).reshape(q.shape)


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
    _, g, page, _ = values.shape
    seal = numerics.seal
    keys, values = as_stored(keys), as_stored(values)
    if _own_kernel(values):
        mixed, peak, total = own.attend(seal(q), keys, values, tables, positions, window, rule.scale, rule.softcap)
        return mixed, peak + jnp.log(total)
    grouped = seal(q.reshape(u, x, g, h // g, width).swapaxes(1, 2).reshape(u, g, -1, width))  # [u, g, m, k], m = x r

    def back(array: jax.Array) -> jax.Array:
        return array.reshape(u, g, x, h // g, -1).swapaxes(1, 2).reshape(u, x, h, -1)

    def one_page(block: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]):
        peak, total, mixed = carry
        k, v = (numbers(pool[tables[:, block]], q.dtype) for pool in (keys, values))
        allowed = within(positions[:, :, None], block * page + jnp.arange(page), window)  # [u, x, B]
        v = jnp.where(allowed.any(axis=1)[:, None, :, None], v, 0)
        seen = jnp.repeat(allowed, h // g, axis=1)[:, None]
        products = numerics.batched(grouped, k)
        scores = jnp.where(seen, capped(products, rule, numerics), MASKED)
        higher = jnp.maximum(peak, scores.max(axis=-1, keepdims=True))
        weights = seal(jnp.where(seen, numerics.exp(seal(scores - higher)), 0.0))
        shrink = numerics.exp(seal(peak - higher))
        added = numerics.batched(weights.astype(v.dtype), v)
        return higher, seal(seal(total * shrink) + numerics.total(weights)), seal(seal(mixed * shrink) + added)

    start = (jnp.full((u, g, grouped.shape[2], 1), MASKED), jnp.zeros((u, g, grouped.shape[2], 1)), jnp.zeros(grouped.shape))
    peak, total, mixed = jax.lax.fori_loop(0, positions.max() // page + 1, one_page, start)
    return back(seal(seal(mixed / total).astype(q.dtype))), back(peak + jnp.log(total))[..., 0]


def _own_kernel(values: jax.Array) -> bool:
    page, width = values.shape[-2:]
    return own.attends(width, page)


def page_of(tables: jax.Array, positions: jax.Array, page_tokens: int) -> jax.Array:
    """The page [n] in which each row's position [n] lies, by tables [n, j]."""
    return jnp.take_along_axis(tables, (positions // page_tokens)[:, None], axis=1)[:, 0]


def write(
    keys: jax.Array,
    values: jax.Array,
    layer: int | jax.Array,
    new: tuple[jax.Array, jax.Array],
    pages: jax.Array,
    positions: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Pools keys [L, p, g, k, B] and values [L, p, g, B, k], as stored, with a layer's `new` keys and values [n, g, k] in the rows'
    pages [n], at their positions [n]. Rows of one place must be alike, or nobody's (scratch)."""
    k, v = (_fitting(part, pool) for part, pool in zip(new, (keys, values), strict=True))
    if packed.available():
        return own.write(keys, values, layer, (k, v), pages, positions)
    k, v, pages, positions = _two_at_least(k, v, pages, positions)
    keys = keys.at[layer, pages, :, :, positions % keys.shape[-1]].set(k)
    return keys, values.at[layer, pages, :, positions % values.shape[-2]].set(v)


def _two_at_least(*rows: jax.Array) -> tuple[jax.Array, ...]:
    """A single row is written twice: XLA makes one write a slice's update, for which its CPU compiler copies the pool."""
    return tuple(jnp.repeat(array, 2, axis=0) if array.shape[0] == 1 else array for array in rows)


def in_pages(k: jax.Array, v: jax.Array, page_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Pools of one stream's keys and values [..., t, g, k], whose pages follow each other."""
    keys, values = (part.reshape(-1, page_tokens, *part.shape[-2:]) for part in (k, v))
    return keys.transpose(0, 2, 3, 1), values.swapaxes(1, 2)


def as_stored(given: jax.Array) -> jax.Array:
    """Keys or values as pools hold them: bfloat16 as its bits, because XLA CPU widens a whole pool of it to move a few pages."""
    return jax.lax.bitcast_convert_type(given, jnp.uint16) if given.dtype == jnp.bfloat16 else given


def dtype_of(pool: jax.Array) -> jnp.dtype:
    """Of the numbers that a pool holds."""
    return jnp.dtype(jnp.bfloat16) if pool.dtype == jnp.uint16 else pool.dtype


def numbers(stored: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The inverse of `as_stored`."""
    return jax.lax.bitcast_convert_type(stored, dtype) if stored.dtype == jnp.uint16 else stored


def _fitting(new: jax.Array, pool: jax.Array) -> jax.Array:
    stored = as_stored(new.astype(dtype_of(pool)))
    assert stored.dtype == pool.dtype, "pools of bfloat16 hold bits (`as_stored`)"
    return stored
