"""Decoupled PPO: the trust region around a recent (proximal) policy, the correction from the one that sampled.

Fu et al. 2025, AReaL, arXiv 2505.24298, eq. 5, after Hilton et al. 2022, arXiv 2110.00641. Equals ppo on fresh data.
"""

import math

import jax.numpy as jnp

from slipstream.train.objectives.ppo import clipped_surrogate
from slipstream.train.objectives.tokens import TokenLoss, Tokens


def decoupled_ppo(tokens: Tokens, clip_low: float, clip_high: float, weight_cap: float) -> TokenLoss:
    """w * clipped surrogate of u = pi_current / pi_proximal, w = pi_proximal / pi_behaviour as a constant.

    Tokens with w above `weight_cap` are left out, and so are those whose w is not a number or overflows.
    """
    log_weight = tokens.proximal - tokens.behaviour
    kept = log_weight <= math.log(weight_cap)
    weight = jnp.exp(jnp.where(kept, log_weight, 0.0))
    surrogate, clipped = clipped_surrogate(jnp.exp(tokens.current - tokens.proximal), tokens.advantages, clip_low, clip_high)
    return TokenLoss(jnp.where(kept, weight * surrogate, 0.0), jnp.where(kept, clipped, 0.0), (~kept).astype(jnp.float32))
