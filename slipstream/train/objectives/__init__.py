"""Per-token losses, one file a paper. `objective(config)` gives the function for a configuration.

Every loss has one signature: (log-probs of the current policy, of the proximal policy, of the behaviour policy, advantages)
-> (loss per token, share clipped or left out per token as 0/1). All arrays have one shape; masking and the mean are the caller's.
"""

from slipstream.train.objectives.objective import TokenLoss, objective

__all__ = ["TokenLoss", "objective"]
