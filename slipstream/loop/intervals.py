"""95 % intervals of scores whose sampling unit is the problem. Pure; called by `pass_at_k` and `comparison`.

Both borrow from small samples the same remedy: a pair of problems that were not asked, one at each end. So no interval has zero width,
however much the problems agree. Coverage is checked by simulation in tests/loop/test_intervals.py.
"""

from math import sqrt

import numpy as np

Z = 1.959964  # 97.5 % point of the normal distribution


def wilson_interval(successes: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); 95 % at the default z. Raises ValueError without trials."""
    if trials <= 0:
        raise ValueError("an interval needs at least one trial")
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(max(0.0, share * (1 - share)) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(scores: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of scores in [0, 1], one a problem: float64 [problems].

    Wilson's interval at the effective number of problems (Franco, Little, Louis and Slud 2019): the problems divided by the ratio
    of the scores' variance to that of right-or-wrong scores of the same mean. The ratio is taken with two problems more, one of
    score 0 and one of score 1. With scores of only 0 and 1 it is 1, and the interval is Wilson's. Raises ValueError without scores.
    """
    count = len(scores)
    more = np.append(scores, (0.0, 1.0))
    mean = float(more.mean())
    ratio = min(1.0, float(more.var()) / (mean * (1 - mean)))
    trials = count / ratio
    return wilson_interval(float(scores.mean()) * trials if count else 0.0, trials)


def paired_interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of differences in [-1, 1], one a problem: float64 [problems].

    Bonett and Price's interval (2012), stretched to partial scores: the normal interval after two problems more, one won and one
    lost by the largest difference seen (by 1 where there is none). Raises ValueError without differences.
    """
    if not len(differences):
        raise ValueError("an interval needs at least one difference")
    largest = float(np.abs(differences).max()) or 1.0
    more = np.append(differences, (largest, -largest))
    mean, half = float(more.mean()), Z * float(more.std()) / sqrt(len(more))
    return max(-1.0, mean - half), min(1.0, mean + half)
