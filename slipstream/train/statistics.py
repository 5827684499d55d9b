"""Figures of one learner step from its tokens: pure numpy over 1-D arrays of the trained tokens."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The tokens that were computed on in a step, each array [tokens]."""

    current: np.ndarray  # log-prob before the update
    behaviour: np.ndarray  # log-prob when drawn
    entropy: np.ndarray
    loss: np.ndarray
    limited: np.ndarray  # 1 where clipped or left out


def step_statistics(tokens: TokenTable, denominator: int) -> dict[str, float]:
    """loss, entropy, ratio mean / std / p99, effective sample size, clip share.

    ratio r = pi_current / pi_behaviour; ess = (sum r)^2 / (n sum r^2), 1 when all ratios are equal. `loss` is divided by the
    step's denominator; the others are over the computed tokens (those of groups that carry signal).
    """
    if not len(tokens.current):
        nothing = float("nan")
        return {
            "loss": 0.0,
            "entropy": nothing,
            "ratio_mean": nothing,
            "ratio_std": nothing,
            "ratio_p99": nothing,
            "ess": nothing,
            "clip_fraction": nothing,
        }
    with np.errstate(over="ignore", invalid="ignore"):  # a sampler's log-probs may be anything; infinities are shown as they are
        ratio = np.exp(np.float64(tokens.current) - tokens.behaviour)
        figures = _ratio_figures(ratio)
    return figures | {
        "loss": float(tokens.loss.sum(dtype=np.float64) / denominator),
        "entropy": float(tokens.entropy.mean(dtype=np.float64)),
        "clip_fraction": float(tokens.limited.mean(dtype=np.float64)),
    }


def _ratio_figures(ratio: np.ndarray) -> dict[str, float]:
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_std": float(ratio.std()),
        "ratio_p99": float(np.quantile(ratio, 0.99)),
        "ess": float(ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())),
    }
