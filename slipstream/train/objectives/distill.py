"""On-policy distillation: the reverse KL to a teacher on the student's own samples (Agarwal et al. 2024, GKD, arXiv 2306.13649).

Only the teacher's log-prob of each sampled token is known, so the KL of a position is estimated from that one token: an unbiased
estimate of its gradient, with more variance than a sum over the vocabulary. How a token changes later positions is not counted
(Gu et al. 2024, MiniLLM, arXiv 2306.08543, eq. 3, the single-step part). Rewards play no part.
"""

import jax

from slipstream.train.objectives.reinforce import weighted_score
from slipstream.train.objectives.tokens import TokenLoss, Tokens


def distill(tokens: Tokens, weight_cap: float) -> TokenLoss:
    """-min(r, weight_cap) A log pi with A = log pi_teacher - log pi_current and r = pi_current / pi_behaviour, both constants."""
    gap = tokens.reference - jax.lax.stop_gradient(tokens.current)
    return weighted_score(tokens, gap, weight_cap)
