"""What attention computes, whoever computes it: the scale and soft cap of scores, and which token sees which.

Keys and values that a token does not see never change what it computes, nor its gradient, as long as they are finite.

Letters: b rows, t query tokens, s key tokens, h query heads, g key/value heads, r = h/g, k head width.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from slipstream.models.layers import soft_cap
from slipstream.models.numerics import FAST, Numerics
from slipstream.models.spec import ModelSpec

MASKED = -1e30  # score of a key that is not seen; finite, so that differences of two are defined


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """Hashable, so a static argument."""

    scale: float  # scores q k are multiplied by this
    softcap: float | None = None  # then soft-capped at this


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Several segments a row. A segment sees its own past and that of its parent, a shared prompt in the same row.

    All int32 [b, t]. Segment 0 is padding: it sees padding only, so nothing is undefined and nothing leaks.
    """

    segments: jax.Array
    parents: jax.Array  # the segment whose tokens come before this one's; the segment itself where it starts at position 0
    positions: jax.Array  # place of a token in its sequence


def attention_rule(spec: ModelSpec) -> AttentionRule:
    """The rule of a decoder."""
    scalar = spec.head_dim if spec.query_scalar is None else spec.query_scalar
    return AttentionRule(scale=scalar**-0.5, softcap=spec.attention_softcap)


def capped(products: jax.Array, rule: AttentionRule, numerics: Numerics = FAST) -> jax.Array:
    """Raw products q k to scores."""
    return soft_cap(numerics.seal(products * rule.scale), rule.softcap, numerics)


def within(queries: jax.Array, keys: jax.Array, window: int | jax.Array) -> jax.Array:
    """Whether keys at given positions lie in the past of queries and inside the window (0 = unlimited). Shapes broadcast."""
    distance = queries - keys
    near = True if isinstance(window, int) and window == 0 else (distance < window) | (jnp.asarray(window) == 0)
    return (distance >= 0) & near


def related(queries: PackedRows, keys: PackedRows, window: int | jax.Array) -> jax.Array:
    """Which queries [b, t] see which keys [b, s] of the same rows: bool [b, t, s]."""
    same = queries.segments[:, :, None] == keys.segments[:, None, :]
    parent = queries.parents[:, :, None] == keys.segments[:, None, :]
    return (same | parent) & within(queries.positions[:, :, None], keys.positions[:, None, :], window)
