"""Losses, one file a paper. `objective(config)` gives the function for a configuration; `tokens.py` says what it sees and answers."""

from slipstream.train.objectives.objective import (
    loss_uses_reference,
    needs_reference,
    nothing_without_advantage,
    objective,
    uses_proximal,
)
from slipstream.train.objectives.tokens import Objective, TokenLoss, Tokens

__all__ = [
    "Objective",
    "TokenLoss",
    "Tokens",
    "loss_uses_reference",
    "needs_reference",
    "nothing_without_advantage",
    "objective",
    "uses_proximal",
]
