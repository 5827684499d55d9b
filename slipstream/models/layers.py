"""The decoder's parts as pure functions on arrays.

Dimension letters: b rows, t query tokens, s key tokens, d model width, h query heads, g key/value heads, r = h/g,
k head width, f feed-forward width, m = r t queries of one key/value head.
"""

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square normalisation over the last axis, in float32 (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    scaled = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return scaled.astype(x.dtype) * weight


def rope_tables(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [b, t, k/2] of the rotary angles at integer positions [b, t] (Su et al. 2021, arXiv 2104.09864)."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + k/2) of x [b, t, heads, k], the pairing of Hugging Face checkpoints."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, :, None, :].astype(x.dtype), sin[:, :, None, :].astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array) -> jax.Array:
    """Grouped-query attention: q [b, t, h, k], k [b, g, k, s], v [b, g, s, k], allowed [b, t, s] -> [b, t, h, k].

    Keys and values lie as the two products read them, so that a cache is never rearranged: with keys as [b, s, g, k] the first
    product alone is five times slower on CPU. Every query must be allowed at least one key. Softmax in float32.
    """
    b, t, h, width = q.shape
    g = k.shape[1]
    grouped = q.reshape(b, t, g, h // g, width).transpose(0, 2, 3, 1, 4).reshape(b, g, -1, width)
    scores = jnp.einsum("bgmk,bgks->bgms", grouped, k, preferred_element_type=jnp.float32) * width**-0.5
    masked = jnp.where(allowed[:, None, None], scores.reshape(b, g, h // g, t, -1), jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(masked, axis=-1).astype(v.dtype).reshape(scores.shape)
    mixed = jnp.einsum("bgms,bgsk->bgmk", weights, v)
    return mixed.reshape(b, g, h // g, t, width).transpose(0, 3, 1, 2, 4).reshape(b, t, h, width)


def attention_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values [b, s, g, k] as `attend` and the cache want them: [b, g, k, s] and [b, g, s, k]."""
    return k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)


def packed_mask(segment_ids: jax.Array, parent_ids: jax.Array) -> jax.Array:
    """Which tokens see which in packed rows [b, t] -> [b, t, t]: the past of the same segment and of its parent, and oneself.

    A parent is a shared prompt that stands before its branches in the row; a segment without one names itself. Segment 0 is
    padding; a padding token sees only itself, so nothing is undefined.
    """
    index = jnp.arange(segment_ids.shape[1])
    query, parent, key = segment_ids[:, :, None], parent_ids[:, :, None], segment_ids[:, None, :]
    related = ((query == key) | (parent == key)) & (query > 0)
    return (related & (index[:, None] >= index[None, :])) | (index[:, None] == index[None, :])
