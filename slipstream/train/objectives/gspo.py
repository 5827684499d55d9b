"""GSPO: the ratio and its clip are the sequence's, not the token's (Zheng et al. 2025, arXiv 2507.18071, eq. 5 to 7)."""

import jax
import jax.numpy as jnp

from slipstream.train.objectives.ppo import clipped_surrogate
from slipstream.train.objectives.tokens import TokenLoss, Tokens, nothing, sequence_mean


def gspo(tokens: Tokens, clip_low: float, clip_high: float) -> TokenLoss:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), s = exp(mean over the sequence of log(pi_current / pi_behaviour)).

    Written for each token as the paper's eq. 13 (GSPO-token): s times pi_current / sg(pi_current). Under the reducer `sequence` value
    and gradient are those of eq. 5, and tokens may differ in advantage.
    """
    current = jax.lax.stop_gradient(tokens.current)
    ratio = jnp.exp(sequence_mean(current - tokens.behaviour, tokens) + (tokens.current - current))
    loss, clipped = clipped_surrogate(ratio, tokens.advantages, clip_low, clip_high)
    return TokenLoss(loss, clipped, nothing(tokens))
