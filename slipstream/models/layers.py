"""The decoder's small parts as pure functions on arrays: norms, rotary positions, activations, soft caps.

Letters: ... rows in any layout, d model width, h heads, k head width.
"""

import math

import jax
import jax.numpy as jnp

from slipstream.models.spec import RopeSpec


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, plus_one: bool = False) -> jax.Array:
    """Root-mean-square normalisation over the last axis, in float32 (Zhang and Sennrich 2019, arXiv 1910.07467).

    `plus_one` multiplies by 1 + weight before rounding to x's dtype, as Gemma does; others multiply by weight after it.
    """
    x32 = x.astype(jnp.float32)
    scaled = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    if plus_one:
        return (scaled * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
    return scaled.astype(x.dtype) * weight.astype(x.dtype)


def rope_frequencies(rope: RopeSpec, head_dim: int) -> jax.Array:
    """Radians a position of each pair [k/2], stretched as `rope` says."""
    plain = rope.theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: jax.Array, rope: RopeSpec) -> jax.Array:
    """Low frequencies divided by the factor, high ones kept, a linear blend between (Llama 3.1 model card and reference code)."""
    turns = rope.original_context * plain / (2 * math.pi)  # within the original context
    kept = jnp.clip((turns - rope.low_factor) / (rope.high_factor - rope.low_factor), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / rope.factor


def rope_tables(positions: jax.Array, head_dim: int, rope: RopeSpec) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [..., k/2] of the rotary angles at integer positions [...] (Su et al. 2021, arXiv 2104.09864)."""
    angles = positions[..., None].astype(jnp.float32) * rope_frequencies(rope, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + k/2) of x [..., heads, k], the pairing of Hugging Face checkpoints."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[..., None, :].astype(x.dtype), sin[..., None, :].astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """cap tanh(x / cap): the identity for small x, never beyond cap (Gemma 2, arXiv 2408.00118, section 2)."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def activate(x: jax.Array, name: str) -> jax.Array:
    """The gate's activation: silu, or gelu_tanh (the tanh approximation of Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    return jax.nn.silu(x) if name == "silu" else jax.nn.gelu(x, approximate=True)
