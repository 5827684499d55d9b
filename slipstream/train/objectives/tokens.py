"""What an objective sees of a microbatch and what it answers, and sums over the tokens of one sequence. Pure; called inside jit.

Letters: r rows of t positions. A position speaks of its target token; a sequence's own positions have one segment id, stand
together in one row, and no two sequences of a row share an id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import associative_scan


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """All arrays [r, t]; meaningless where `mask` is 0. Only `current` carries a gradient."""

    current: jax.Array  # log-prob of the target under the policy that is updated
    proximal: jax.Array  # under the policy at the start of the step
    behaviour: jax.Array  # under the policy that drew it, when it was drawn
    reference: jax.Array  # under the reference policy or teacher; anything where the objective uses none
    advantages: jax.Array
    mask: jax.Array  # bool, True where the target is trained on
    segments: jax.Array  # int32, 0 = padding
    kept: jax.Array  # bool, False where a correction over the whole batch left the token out
    corrected: jax.Array  # bool, True where corrections apply to the token's sampler


class TokenLoss(NamedTuple):
    """Per token, [r, t]. The reducer's weights, and so the mean, are the caller's."""

    loss: jax.Array
    clipped: jax.Array  # 1.0 where a bound acted on the ratio, so that the token's gradient is cut or capped
    masked: jax.Array  # 1.0 where the token was left out


Objective = Callable[[Tokens], TokenLoss]


@jax.jit  # one program where it is called outside of another: in tests
def sequence_sum(values: jax.Array, tokens: Tokens) -> jax.Array:
    """At each position the sum of `values` over the trained tokens of its sequence, [r, t]; the order of summation is fixed.

    Meant for quantities without gradient.
    """
    opens = jnp.pad(tokens.segments[:, 1:] != tokens.segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)

    def join(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.where(right[1], right[0], left[0] + right[0]), left[1] | right[1]

    running, _ = associative_scan(join, (jnp.where(tokens.mask, values, 0.0), opens), axis=1)
    width = tokens.segments.shape[1]
    closes = jnp.pad(opens[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    last = jax.lax.cummin(jnp.where(closes, jnp.arange(width), width), axis=1, reverse=True)
    return jnp.take_along_axis(running, last, axis=1)


def sequence_mean(values: jax.Array, tokens: Tokens) -> jax.Array:
    """At each position the mean of `values` over the trained tokens of its sequence, [r, t]; 0 where it has none."""
    return sequence_sum(values, tokens) / jnp.maximum(sequence_sum(jnp.ones_like(values), tokens), 1.0)


def nothing(tokens: Tokens) -> jax.Array:
    """0.0 for every token."""
    return jnp.zeros_like(tokens.current)
