"""Advantages of a group's samples from its rewards. Pure numpy, float64 inside.

Letters: G samples of one prompt, rewards r_1 .. r_G.
"""

from collections.abc import Callable

import numpy as np

GroupAdvantage = Callable[[np.ndarray], np.ndarray]


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


ADVANTAGES: dict[str, GroupAdvantage] = {"rloo": rloo, "grpo": grpo, "dr_grpo": dr_grpo}
