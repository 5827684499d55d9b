"""M2PO's mask over a whole batch (Zheng et al. 2025, "Prosperity before collapse", arXiv 2510.01161, algorithm 1). Pure numpy."""

import numpy as np


def second_moment_mask(log_ratios: np.ndarray, bound: float) -> np.ndarray:
    """Which of the batch's tokens to keep, bool [tokens], so that the mean of log_ratio^2 over them is at most `bound`.

    `log_ratios` [tokens] are log(pi_proximal / pi_behaviour). Tokens are left out from the largest square down, as few as will do; among
    equals the later one goes first. What is no number is left out.
    """
    squares = np.square(np.float64(log_ratios))
    squares = np.where(np.isnan(squares), np.inf, squares)
    ascending = np.argsort(squares, kind="stable")
    means = np.cumsum(squares[ascending]) / np.arange(1, len(squares) + 1)
    kept = np.zeros(len(squares), bool)
    kept[ascending[: int(np.searchsorted(means, bound, side="right"))]] = True
    return kept
