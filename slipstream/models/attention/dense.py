"""Attention that holds all scores at once: the plain-JAX oracle of the others, and the fastest for short rows on CPU."""

import jax
import jax.numpy as jnp

from slipstream.models.attention.rule import MASKED, AttentionRule, PackedRows, capped, related


def attend(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array, rule: AttentionRule) -> jax.Array:
    """Grouped-query attention: q [b, t, h, k], k [b, g, k, s], v [b, g, s, k], allowed [b, t, s] -> [b, t, h, k].

    Keys and values lie as the two products read them, so that a cache is never rearranged: with keys as [b, s, g, k] the first
    product alone is five times slower on CPU. Every query must be allowed at least one key. Softmax in float32.
    """
    b, t, h, width = q.shape
    g = k.shape[1]
    grouped = q.reshape(b, t, g, h // g, width).transpose(0, 2, 3, 1, 4).reshape(b, g, -1, width)
    scores = capped(jnp.einsum("bgmk,bgks->bgms", grouped, k, preferred_element_type=jnp.float32), rule)
    masked = jnp.where(allowed[:, None, None], scores.reshape(b, g, h // g, t, -1), MASKED)
    weights = jax.nn.softmax(masked, axis=-1).astype(v.dtype).reshape(scores.shape)
    mixed = jnp.einsum("bgms,bgsk->bgmk", weights, v)
    return mixed.reshape(b, g, h // g, t, width).transpose(0, 3, 1, 2, 4).reshape(b, t, h, width)


def attention_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values [b, s, g, k] as `attend` and a cache want them: [b, g, k, s] and [b, g, s, k]."""
    return k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)


def dense(q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: int | jax.Array, rule: AttentionRule) -> jax.Array:
    """Attention of packed rows: q [b, t, h, k], k and v [b, t, g, k] -> [b, t, h, k]. Memory grows with t squared."""
    return attend(q, *attention_layout(k, v), related(rows, rows, window), rule)
