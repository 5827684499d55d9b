"""Decoupled PPO: the trust region around a recent (proximal) policy, the correction from the one that sampled.

Fu et al. 2025, AReaL, arXiv 2505.24298, eq. 5, after Hilton et al. 2022, arXiv 2110.00641. Equals ppo on fresh data.
"""

import math

import jax
import jax.numpy as jnp

from slipstream.train.objectives.ppo import clipped_surrogate


def decoupled_ppo(
    current: jax.Array,
    proximal: jax.Array,
    behaviour: jax.Array,
    advantages: jax.Array,
    clip_low: float,
    clip_high: float,
    weight_cap: float,
) -> tuple[jax.Array, jax.Array]:
    """w * clipped surrogate of u = pi_current / pi_proximal, w = pi_proximal / pi_behaviour as a constant.

    Tokens with w above `weight_cap` are left out, and so are those whose w is not a number or overflows. Also returns 1.0 where the
    clip acted or the token was left out.
    """
    proximal = jax.lax.stop_gradient(proximal)
    log_weight = proximal - behaviour
    kept = log_weight <= math.log(weight_cap)
    weight = jnp.exp(jnp.where(kept, log_weight, 0.0))
    surrogate, clipped = clipped_surrogate(jnp.exp(current - proximal), advantages, clip_low, clip_high)
    return jnp.where(kept, weight * surrogate, 0.0), jnp.where(kept, clipped, 1.0)
