"""What a sample's verdict is worth in training: its reward, less a penalty on length and the KL to a reference. Pure numpy, float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What is taken off. The rewards in metrics and files stay the verdicts'."""

    max_new_tokens: int = 0  # the longest completion
    overlong_tokens: int = 0  # length of the soft range before it; 0: no penalty
    kl_coefficient: float = 0.0  # 0: none
    kl_estimator: str = "k1"


def shaped_rewards(rollouts: Sequence[Rollout], shaping: Shaping, reference: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """Rewards to take advantages of, [rollouts].

    `reference`: log-probs of each rollout's completion under the reference policy; needed where there is a KL to take off.
    """
    rewards = np.array([rollout.outcome.reward for rollout in rollouts], np.float64)
    if shaping.overlong_tokens:
        rewards += [overlong_penalty(len(one.completion_ids), shaping.max_new_tokens, shaping.overlong_tokens) for one in rollouts]
    if shaping.kl_coefficient:
        if reference is None:
            raise ValueError("a KL in the reward needs the rollouts' log-probs under the reference policy")
        kls = [_kl_of(rollout, near, shaping.kl_estimator) for rollout, near in zip(rollouts, reference, strict=True)]
        rewards -= shaping.kl_coefficient * np.array(kls)
    return rewards


def overlong_penalty(tokens: int, longest: int, soft: int) -> float:
    """0 up to longest - soft tokens, then falling in a line to -1 at the longest (Yu et al. 2025, DAPO, arXiv 2503.14476, eq. 13)."""
    return -max(0, tokens - (longest - soft)) / soft


def _kl_of(rollout: Rollout, reference: np.ndarray, estimator: str) -> float:
    """KL of the whole sample: the sum over its chosen tokens of an estimate of KL(behaviour || reference), nats.

    k1, k2, k3 as in `train.objectives.kl`. Summed, and with the policy that sampled: the penalty of Ahmadian et al. 2024, arXiv
    2402.14740, eq. 3.
    """
    gap = np.float64(rollout.logprobs[rollout.loss_mask]) - reference[rollout.loss_mask]
    values = {"k1": gap, "k2": np.square(gap) / 2, "k3": np.expm1(-gap) + gap}[estimator]
    return float(values.sum())
