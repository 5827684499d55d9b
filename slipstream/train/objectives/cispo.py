"""CISPO: the importance weight is clipped, no token's gradient is dropped (MiniMax 2025, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

With no lower bound, as in the paper's runs, it is reinforce_is with the paper's name and cap.
"""

from slipstream.train.objectives.reinforce import weighted_score
from slipstream.train.objectives.tokens import TokenLoss, Tokens


def cispo(tokens: Tokens, weight_cap: float) -> TokenLoss:
    """-clip(r, 0, weight_cap) A log pi with r = pi_current / pi_behaviour; the clipped ratio is a constant."""
    return weighted_score(tokens, tokens.advantages, weight_cap)
