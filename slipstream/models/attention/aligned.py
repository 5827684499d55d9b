"""Attention of packed rows to the very bits of the paged cache: each segment starts on a page, so the row's keys are the pages.

Seen so, a packed row is a pool of pages, and which segment a page belongs to is all the table there is. The backward pass is
that of `chunked`: only the forward pass has to be exact.

Letters: b rows, t tokens, P pages of a row, B tokens of a page, x tokens of a query tile, h query heads, k head width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.models.attention.chunked import backward_of_blocks
from slipstream.models.attention.paged import in_pages, units_by_page
from slipstream.models.attention.rule import AttentionRule, PackedRows
from slipstream.models.numerics import Numerics


def aligned(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    rows: PackedRows,
    window: int | jax.Array,
    rule: AttentionRule,
    *,
    page_tokens: int,
    numerics: Numerics,
) -> jax.Array:
    """q [b, t, h, k], k and v [b, t, g, k] -> [b, t, h, k]. Segments start at multiples of `page_tokens`, which divides t."""
    how = (rule, page_tokens, numerics)
    found: Any = _attend(how, q, k, v, rows, jnp.asarray(window, jnp.int32))
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array) -> jax.Array:
    return _forward(how, q, k, v, rows, window)[0]


def _forward(how, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mixed values, and the log-sum-exp of the scores [b, t, h]."""
    rule, page, numerics = how
    b, t, h, width = q.shape
    tile = min(numerics.query_tile, page)
    tables = jnp.repeat(page_tables(rows, page).reshape(-1, t // page), page // tile, axis=0)
    keys, values = in_pages(k, v, page)
    units, positions = q.reshape(-1, tile, h, width), rows.positions.reshape(-1, tile)
    mixed, lse = units_by_page(units, keys, values, tables, positions, window, rule, numerics)
    return mixed.reshape(q.shape), lse.reshape(b, t, h)


def page_tables(rows: PackedRows, page: int) -> jax.Array:
    """For each page of each row, the pages of its sequence in order: int32 [b, P, P] into the pool of all rows' pages.

    A page belongs to the segment of its first token, at the place in the sequence that the token's position says.
    """
    segments, parents, places = (part[:, ::page] for part in (rows.segments, rows.parents, rows.positions // page))
    mine = (segments[:, :, None] == segments[:, None, :]) | (parents[:, :, None] == segments[:, None, :])
    count = segments.shape[1]
    order = jnp.argsort(jnp.where(mine, places[:, None, :], count), axis=-1, stable=True)
    return order + jnp.arange(segments.shape[0])[:, None, None] * count


def _saving(how, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array):
    mixed, lse = _forward(how, q, k, v, rows, window)
    return mixed, (q, k, v, rows, window, mixed, lse)


def _backward(how, saved, cotangent: jax.Array):
    return backward_of_blocks(how[0], saved, cotangent)


_attend.defvjp(_saving, _backward)
