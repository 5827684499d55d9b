"""Advantages of samples from their rewards. Pure numpy, float64 inside.

Letters: G samples of one prompt, rewards r_1 .. r_G. An advantage here is one number a sample, which all its tokens share;
`sequences.from_rollout` also takes one a token, as a value function gives them.
"""

from collections.abc import Callable, Sequence

import numpy as np

Advantage = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""From the rewards of each group of a batch, [G] each, to their advantages."""


def rloo(rewards: np.ndarray) -> np.ndarray:
    """r_i - mean of the others = G/(G-1) (r_i - mean): leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740)."""
    count = len(rewards)
    return (rewards - rewards.mean()) * count / (count - 1) if count > 1 else np.zeros(count)


def grpo(rewards: np.ndarray) -> np.ndarray:
    """(r_i - mean) / (std + 1e-6) (Shao et al. 2024, arXiv 2402.03300)."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """r_i - mean: GRPO without its length and difficulty bias (Liu et al. 2025, arXiv 2503.20783)."""
    return rewards - rewards.mean()


def reinforce_plus_plus(groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """r_i - mean, whitened over the batch: divided by the deviation of all samples' (Hu et al. 2025, arXiv 2501.03262, the baseline form).

    Every group's differences sum to 0, so the mean over the batch is 0 already.
    """
    centred = [_or_zeros(dr_grpo, rewards) for rewards in groups]
    deviation = np.concatenate(centred).std() if centred else 0.0
    return [differences / (deviation + 1e-6) for differences in centred]


def _per_group(of_group: Callable[[np.ndarray], np.ndarray]) -> Advantage:
    return lambda groups: [_or_zeros(of_group, rewards) for rewards in groups]


def _or_zeros(of_group: Callable[[np.ndarray], np.ndarray], rewards: np.ndarray) -> np.ndarray:
    """Exact zeros for a constant group: rounding of its mean must not become a signal."""
    return of_group(rewards) if np.ptp(rewards) > 0 else np.zeros(len(rewards))


ADVANTAGES: dict[str, Advantage] = {
    "rloo": _per_group(rloo),
    "grpo": _per_group(grpo),
    "dr_grpo": _per_group(dr_grpo),
    "reinforce++": reinforce_plus_plus,
}
