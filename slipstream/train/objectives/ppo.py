"""Proximal policy optimisation, clipped against the behaviour policy (Schulman et al. 2017, arXiv 1707.06347, eq. 7), and DAPO.

Its trust region is centred on the policy that sampled, so it stalls on stale data; kept as the baseline to compare with.

DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 8) is this loss with a higher upper bound (0.28), the mean over all tokens of the
batch (reducer `token`), and the soft penalty on length of its eq. 13, which is a matter of rewards (`loop.rewards`).
"""

import jax
import jax.numpy as jnp

from slipstream.train.objectives.tokens import TokenLoss, Tokens, nothing


def ppo(tokens: Tokens, clip_low: float, clip_high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = pi_current / pi_behaviour."""
    ratio = jnp.exp(tokens.current - tokens.behaviour)
    loss, clipped = clipped_surrogate(ratio, tokens.advantages, clip_low, clip_high)
    return TokenLoss(loss, clipped, nothing(tokens))


def clipped_surrogate(ratio: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float) -> tuple[jax.Array, jax.Array]:
    """The pessimistic surrogate loss of a ratio, and 1.0 where its gradient is cut."""
    free = ratio * advantages
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages
    return -jnp.minimum(free, clipped), (clipped < free).astype(jnp.float32)
