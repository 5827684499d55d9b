"""REINFORCE (Williams 1992), with and without importance weights.

Capped token-level weights: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training". Without a
cap the estimate is unbiased; it is allowed where sampler and learner agree to the bit, so that a ratio is never a rounding error.
"""

import jax
import jax.numpy as jnp

from slipstream.train.objectives.tokens import TokenLoss, Tokens, nothing


def reinforce(tokens: Tokens) -> TokenLoss:
    """-A log pi: right for fresh data only; drifts on stale data."""
    return TokenLoss(-tokens.advantages * tokens.current, nothing(tokens), nothing(tokens))


def reinforce_is(tokens: Tokens, weight_cap: float) -> TokenLoss:
    """-min(r, weight_cap) A log pi with r = pi_current / pi_behaviour as a constant."""
    return weighted_score(tokens, tokens.advantages, weight_cap)


def weighted_score(tokens: Tokens, advantages: jax.Array, weight_cap: float) -> TokenLoss:
    """-min(r, weight_cap) * advantages * log pi, the weight without gradient; `clipped` where the cap acted."""
    ratio = jnp.exp(jax.lax.stop_gradient(tokens.current) - tokens.behaviour)
    clipped = (ratio > weight_cap).astype(jnp.float32)
    return TokenLoss(-jnp.minimum(ratio, weight_cap) * advantages * tokens.current, clipped, nothing(tokens))
