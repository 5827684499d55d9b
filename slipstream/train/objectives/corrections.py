"""Corrections for samples of another policy, around any objective: importance weights to the proximal policy, and masks.

Truncated importance weights: Yao et al. 2025 ("Your efficient RL framework secretly brings you off-policy RL training"), at the
level of sequences Liu et al. 2025 ("When speed kills stability"). Masked ones: Ling Team 2025, IcePop, arXiv 2510.18855.
Off-policy sequence masking: DeepSeek-AI 2025, DeepSeek-V3.2, arXiv 2512.02556, section 3.1. The mask over the whole batch (M2PO) comes
in as `Tokens.kept`; see `train.second_moment`.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp

from slipstream.config.schema import CorrectionSection
from slipstream.train.objectives.tokens import Objective, TokenLoss, Tokens, sequence_mean, sequence_sum


def with_correction(objective: Objective, settings: CorrectionSection) -> Objective:
    """The objective with what the settings add; the objective itself where they add nothing."""
    if settings.importance == "none" and not settings.sequence_kl and not settings.second_moment:
        return objective

    def corrected(tokens: Tokens) -> TokenLoss:
        kept = tokens.kept
        if settings.sequence_kl:
            kept = kept & ~_too_far(tokens, settings.sequence_kl)
        weight, seen = jnp.ones_like(tokens.current), tokens
        if settings.importance != "none":
            weight, inside = _importance(tokens, settings)
            kept = kept & inside
            seen = replace(tokens, behaviour=jnp.where(tokens.corrected, tokens.proximal, tokens.behaviour))
        kept = kept | ~tokens.corrected
        # a token left out counts as the policy's own, so that an absurd ratio of it makes no gradient infinite
        inner = objective(replace(seen, behaviour=jnp.where(kept, seen.behaviour, jax.lax.stop_gradient(tokens.current))))
        masked = jnp.where(kept, inner.masked, 1.0)
        loss = jnp.where(kept, jnp.where(tokens.corrected, weight, 1.0) * inner.loss, 0.0)
        return TokenLoss(loss, jnp.where(kept, inner.clipped, 0.0), masked)

    return corrected


def _importance(tokens: Tokens, settings: CorrectionSection) -> tuple[jax.Array, jax.Array]:
    """w = pi_proximal / pi_behaviour of the token or of its whole sequence, and whether it is kept. What is no number is left out."""
    log_weight = tokens.proximal - tokens.behaviour
    if settings.level == "sequence":
        log_weight = sequence_sum(log_weight, tokens)
    if settings.importance == "truncated":
        inside = ~jnp.isnan(log_weight)
        bounded = jnp.minimum(log_weight, math.log(settings.weight_cap))
    else:
        inside = (log_weight >= math.log(settings.weight_low)) & (log_weight <= math.log(settings.weight_high))
        bounded = log_weight
    return jnp.exp(jnp.where(inside, bounded, 0.0)), inside


def _too_far(tokens: Tokens, bound: float) -> jax.Array:
    """True for tokens of sequences that are bad and no longer the policy's own: A < 0 and mean log(pi_b / pi_current) > bound."""
    gap = sequence_mean(tokens.behaviour - jax.lax.stop_gradient(tokens.current), tokens)
    return (sequence_mean(tokens.advantages, tokens) < 0) & (gap > bound)
