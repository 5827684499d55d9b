"""Attention of packed rows in blocks with an online softmax: memory linear in length, forward and backward, in plain JAX.

Blocks of keys that no query of a block sees are skipped: the future, and other segments. The backward pass computes scores
again from the saved log-sum-exp (Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4).

Letters: b rows, t tokens (padded to whole blocks), c blocks, x tokens of a query block, y of a key block, g key/value heads,
r query heads of each, k head width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.models.attention.rule import MASKED, AttentionRule, PackedRows, capped, related
from slipstream.models.numerics import no_gradient

BLOCK = 128  # tokens


def chunked(q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: int | jax.Array, rule: AttentionRule) -> jax.Array:
    """q [b, t, h, k], k and v [b, t, g, k] -> [b, t, h, k]."""
    b, t, h, width = q.shape
    g = k.shape[2]
    grouped = q.reshape(b, t, g, h // g, width)
    mixed: Any = _blocks(rule, _pad(grouped, t), _pad(k, t), _pad(v, t), _pad_rows(rows, t), jnp.asarray(window, jnp.int32))
    return mixed[:, :t].reshape(b, t, h, width)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocks(rule: AttentionRule, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array) -> jax.Array:
    mixed, _ = _forward(rule, q, k, v, rows, window)
    return mixed


def _forward(
    rule: AttentionRule, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mixed values [b, t, g, r, k] in q's dtype, and the log-sum-exp of the scores [b, g, r, t]."""
    keys = (_split(k), _split(v), _split_rows(rows))

    def of_queries(inputs: tuple[jax.Array, PackedRows]) -> tuple[jax.Array, jax.Array]:
        queries, query_rows = inputs
        b, x, g, r, width = queries.shape

        def seen(carry, block_k: jax.Array, block_v: jax.Array, allowed: jax.Array):
            peak, total, mixed = carry
            scores = _scores(rule, queries, block_k, allowed)
            higher = jnp.maximum(peak, scores.max(axis=-1))
            weights = jnp.where(allowed[:, None, None], jnp.exp(scores - higher[..., None]), 0.0)
            shrink = jnp.exp(peak - higher)
            added = jnp.einsum("bgrxy,bygk->bgrxk", weights.astype(block_v.dtype), block_v, preferred_element_type=jnp.float32)
            return higher, total * shrink + weights.sum(axis=-1), mixed * shrink[..., None] + added

        def step(carry, block: tuple[jax.Array, jax.Array, PackedRows]):
            block_k, block_v, key_rows = block
            allowed = related(query_rows, key_rows, window)
            return jax.lax.cond(allowed.any(), lambda: seen(carry, block_k, block_v, allowed), lambda: carry), None

        start = (jnp.full((b, g, r, x), MASKED), jnp.zeros((b, g, r, x)), jnp.zeros((b, g, r, x, width)))
        (peak, total, mixed), _ = jax.lax.scan(step, start, keys)
        return (mixed / total[..., None]).astype(queries.dtype), peak + jnp.log(total)

    mixed, lse = jax.lax.map(of_queries, (_split(q), _split_rows(rows)))
    return _join(mixed.transpose(0, 1, 4, 2, 3, 5)), jnp.moveaxis(lse, 0, 3).reshape(*lse.shape[1:4], -1)


def _forward_saving(rule: AttentionRule, q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: jax.Array):
    mixed, lse = _forward(rule, q, k, v, rows, window)
    return mixed, (q, k, v, rows, window, mixed, lse)


def _backward(rule: AttentionRule, saved, cotangent: jax.Array):
    q, k, v, rows, window, mixed, lse = saved
    share = jnp.einsum("btgrk,btgrk->bgrt", cotangent, mixed, preferred_element_type=jnp.float32)
    queries = (_split(q), _split_rows(rows), _split(cotangent), _split_last(lse), _split_last(share))

    def of_keys(dq: jax.Array, keys: tuple[jax.Array, jax.Array, PackedRows]):
        block_k, block_v, key_rows = keys

        def seen(sums, block_q, block_dq, block_cotangent, block_lse, block_share, allowed):
            dk, dv = sums
            scores = _scores(rule, block_q, block_k, allowed)
            weights = jnp.where(allowed[:, None, None], jnp.exp(scores - block_lse[..., None]), 0.0)
            rounded = weights.astype(block_q.dtype)
            dweights = jnp.einsum("bxgrk,bygk->bgrxy", block_cotangent, block_v, preferred_element_type=jnp.float32)
            dscores = weights * (dweights - block_share[..., None]) * rule.scale
            if rule.softcap is not None:
                slope = 1.0 - (scores / rule.softcap) ** 2  # of the cap; minus infinity where scores are masked
                dscores = jnp.where(allowed[:, None, None], dscores * slope, 0.0)
            dscores = dscores.astype(block_q.dtype)
            dv = dv + jnp.einsum("bgrxy,bxgrk->bygk", rounded, block_cotangent, preferred_element_type=jnp.float32)
            dk = dk + jnp.einsum("bgrxy,bxgrk->bygk", dscores, block_q, preferred_element_type=jnp.float32)
            return (dk, dv), block_dq + jnp.einsum("bgrxy,bygk->bxgrk", dscores, block_k, preferred_element_type=jnp.float32)

        def step(sums, block):
            block_dq, (block_q, query_rows, of_mixed, lse, share) = block
            allowed = related(query_rows, key_rows, window)
            return jax.lax.cond(
                allowed.any(), lambda: seen(sums, block_q, block_dq, of_mixed, lse, share, allowed), lambda: (sums, block_dq)
            )

        zeros = (jnp.zeros(block_k.shape), jnp.zeros(block_v.shape))
        (dk, dv), dq = jax.lax.scan(step, zeros, (dq, queries))
        return dq, (dk, dv)

    dq, (dk, dv) = jax.lax.scan(of_keys, jnp.zeros(queries[0].shape), (_split(k), _split(v), _split_rows(rows)))
    none = jax.tree.map(no_gradient, (rows, window))
    return _join(dq).astype(q.dtype), _join(dk).astype(k.dtype), _join(dv).astype(v.dtype), *none


_blocks.defvjp(_forward_saving, _backward)


def backward_of_blocks(rule: AttentionRule, saved, cotangent: jax.Array):
    """The backward pass for whoever computed the forward one: saved (q, k, v, rows, window, mixed, log-sum-exp [b, t, h])."""
    q, k, v, rows, window, mixed, lse = saved
    (b, t, h), g = q.shape[:3], k.shape[2]
    lse = jnp.where((rows.segments > 0)[..., None], lse, -MASKED)  # padding saw something else; it takes part in nothing

    def grouped(array: jax.Array) -> jax.Array:
        return _pad(array.reshape(b, t, g, h // g, -1), t)

    lse = _pad(lse, t, -MASKED).reshape(b, -1, g, h // g).transpose(0, 2, 3, 1)
    padded = (grouped(q), _pad(k, t), _pad(v, t), _pad_rows(rows, t), window, grouped(mixed), lse)
    dq, dk, dv, _, none = _backward(rule, padded, grouped(cotangent))
    return dq[:, :t].reshape(q.shape), dk[:, :t], dv[:, :t], jax.tree.map(no_gradient, rows), none


def _scores(rule: AttentionRule, queries: jax.Array, keys: jax.Array, allowed: jax.Array) -> jax.Array:
    """Scores [b, g, r, x, y] of a query block and a key block, in float32."""
    products = jnp.einsum("bxgrk,bygk->bgrxy", queries, keys, preferred_element_type=jnp.float32)
    return jnp.where(allowed[:, None, None], capped(products, rule), MASKED)


def _pad(array: jax.Array, tokens: int, value: float = 0) -> jax.Array:
    return jnp.pad(array, ((0, 0), (0, -tokens % BLOCK), *((0, 0),) * (array.ndim - 2)), constant_values=value)


def _pad_rows(rows: PackedRows, tokens: int) -> PackedRows:
    """Tokens beyond the rows are padding, as segment 0 is."""
    return jax.tree.map(lambda array: _pad(array, tokens), rows)


def _split(array: jax.Array) -> jax.Array:
    """[b, t, ...] -> [c, b, x, ...]."""
    return jnp.moveaxis(array.reshape(array.shape[0], -1, BLOCK, *array.shape[2:]), 1, 0)


def _split_rows(rows: PackedRows) -> PackedRows:
    return jax.tree.map(_split, rows)


def _split_last(array: jax.Array) -> jax.Array:
    """[b, g, r, t] -> [c, b, g, r, x]."""
    return jnp.moveaxis(array.reshape(*array.shape[:-1], -1, BLOCK), -2, 0)


def _join(blocks: jax.Array) -> jax.Array:
    """[c, b, x, ...] -> [b, t, ...]."""
    array = jnp.moveaxis(blocks, 0, 1)
    return array.reshape(array.shape[0], -1, *array.shape[3:])
