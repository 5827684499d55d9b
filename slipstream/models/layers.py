"""The decoder's small parts as pure functions on arrays: norms, rotary positions, activations, soft caps.

Letters: ... rows in any layout, d model width, h heads, k head width.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.cpu import rows
from slipstream.models.numerics import FAST, Numerics, with_gradient_of
from slipstream.models.spec import RopeSpec


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, plus_one: bool = False, numerics: Numerics = FAST) -> jax.Array:
    """Root-mean-square normalisation over the last axis, in float32 (Zhang and Sennrich 2019, arXiv 1910.07467).

    `plus_one` multiplies by 1 + weight before rounding to x's dtype, as Gemma does; others multiply by weight after it.
    """
    if numerics.own and rows.fits(x):
        own = with_gradient_of(partial(rms_norm, eps=eps, plus_one=plus_one), partial(rows.norm, eps=eps, plus_one=plus_one))
        return own(x, weight.astype(x.dtype))
    seal = numerics.seal
    x32 = seal(x).astype(jnp.float32)
    mean = seal(numerics.total(seal(x32 * x32)) * (1.0 / x.shape[-1]))
    scaled = seal(x32 * seal(jax.lax.rsqrt(seal(mean + eps))))
    if plus_one:
        return seal((scaled * seal(1.0 + weight.astype(jnp.float32))).astype(x.dtype))
    return seal(seal(scaled.astype(x.dtype)) * seal(weight.astype(x.dtype)))


def add_norm(
    x: jax.Array, y: jax.Array, weight: jax.Array, eps: float, plus_one: bool = False, numerics: Numerics = FAST
) -> tuple[jax.Array, jax.Array]:
    """x + y, and its norm: `rms_norm` of a residual stream and what is added to it."""

    def plain(x: jax.Array, y: jax.Array, weight: jax.Array, numerics: Numerics = FAST) -> tuple[jax.Array, jax.Array]:
        total = numerics.seal(x + y)
        return total, rms_norm(total, weight, eps, plus_one, numerics)

    if not (numerics.own and rows.fits(x)):
        return plain(x, y, weight, numerics)
    return with_gradient_of(plain, partial(rows.add_norm, eps=eps, plus_one=plus_one))(x, y, weight.astype(x.dtype))


def rope_frequencies(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """Radians a position of each pair, float32 [k/2], stretched as `rope` says. From numpy: a constant in every program."""
    plain = (float(rope.theta) ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    if rope.scaling == "linear":
        return (plain / rope.factor).astype(np.float32)
    if rope.scaling == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: np.ndarray, rope: RopeSpec) -> np.ndarray:
    """Low frequencies divided by the factor, high ones kept, a linear blend between (Llama 3.1 model card and reference code)."""
    turns = rope.original_context * plain / (2 * math.pi)  # within the original context
    kept = np.clip((turns - rope.low_factor) / (rope.high_factor - rope.low_factor), 0.0, 1.0)
    return (kept * plain + (1 - kept) * plain / rope.factor).astype(np.float32)


def rope_tables(positions: jax.Array, head_dim: int, rope: RopeSpec, numerics: Numerics = FAST) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [..., k/2] of the rotary angles at integer positions [...] (Su et al. 2021, arXiv 2104.09864)."""
    angles = numerics.seal(positions[..., None].astype(jnp.float32) * rope_frequencies(rope, head_dim))
    return numerics.seal(jnp.cos(angles)), numerics.seal(jnp.sin(angles))


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, numerics: Numerics = FAST) -> jax.Array:
    """Turn the pairs (i, i + k/2) of x [..., heads, k], the pairing of Hugging Face checkpoints; in float32, rounded once."""
    if numerics.own and rows.turns(x):
        return with_gradient_of(rotate, rows.turn)(x, cos, sin)
    seal = numerics.seal
    first, second = jnp.split(seal(x).astype(jnp.float32), 2, axis=-1)
    cos, sin = (table[..., None, :] for table in (cos, sin))
    turned = seal(seal(first * cos) - seal(second * sin)), seal(seal(second * cos) + seal(first * sin))
    return seal(jnp.concatenate(turned, axis=-1).astype(x.dtype))


def soft_cap(x: jax.Array, cap: float | None, numerics: Numerics = FAST) -> jax.Array:
    """cap tanh(x / cap): the identity for small x, never beyond cap (Gemma 2, arXiv 2408.00118, section 2)."""
    return x if cap is None else numerics.seal(cap * numerics.seal(jnp.tanh(numerics.seal(x / cap))))


def gated(gate: jax.Array, up: jax.Array, name: str, numerics: Numerics = FAST) -> jax.Array:
    """The gate's activation times `up`, of the same type; in float32, rounded once."""
    if numerics.own and rows.fits(up):
        return with_gradient_of(partial(gated, name=name), partial(rows.gate, activation=name))(gate, up)
    seal, wide = numerics.seal, jnp.float32
    return seal(seal(activate(seal(gate).astype(wide), name, numerics) * seal(up).astype(wide)).astype(up.dtype))


def activate(x: jax.Array, name: str, numerics: Numerics = FAST) -> jax.Array:
    """The gate's activation: silu, or gelu_tanh (the tanh approximation of Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    seal = numerics.seal
    x = seal(x)
    if name == "silu":
        return seal(x * seal(jax.nn.sigmoid(x)))
    inner = seal(x + seal(0.044715 * seal(x * seal(x * x))))
    return seal(seal(0.5 * x) * seal(1.0 + seal(jnp.tanh(seal(math.sqrt(2 / math.pi) * inner)))))
