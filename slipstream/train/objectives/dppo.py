"""DPPO: a trust region in probability instead of ratio (Qi et al. 2026, "Rethinking the trust region", arXiv 2602.04879, binary TV).

A rare token may double its probability and still be inside; the ratio of ppo would have cut it.
"""

import jax.numpy as jnp

from slipstream.train.objectives.tokens import TokenLoss, Tokens, nothing


def dppo(tokens: Tokens, clip_low: float, clip_high: float, ratio_penalty: float) -> TokenLoss:
    """-r A + ratio_penalty log(r)^2, r = pi_current / pi_behaviour.

    The first term is left out where A > 0 and the probability rose by more than `clip_high`, or A < 0 and it fell by more than
    `clip_low`; the second, which pulls back, stays.
    """
    log_ratio = tokens.current - tokens.behaviour
    rise = jnp.exp(tokens.current) - jnp.exp(tokens.behaviour)
    outside = ((tokens.advantages > 0) & (rise > clip_high)) | ((tokens.advantages < 0) & (rise < -clip_low))
    score = jnp.where(outside, 0.0, -jnp.exp(jnp.where(outside, 0.0, log_ratio)) * tokens.advantages)
    return TokenLoss(score + ratio_penalty * jnp.square(log_ratio), nothing(tokens), outside.astype(jnp.float32))
