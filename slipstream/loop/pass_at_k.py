"""pass@k: the chance that at least one of k answers is right, estimated from n answers a problem. Pure."""

from collections.abc import Sequence
from math import prod

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.core.records import PassAtK, Tally
from slipstream.loop.intervals import mean_interval


def pass_at_k(n: int, right: int, k: int) -> float:
    """1 - C(n - right, k) / C(n, k): the share of the k-subsets of n answers that hold a right one (Chen et al. 2021, eq. 1).

    As a product, so that nothing overflows. Raises ValueError for k > n, whose estimate would be biased.
    """
    if not 1 <= k <= n or not 0 <= right <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= right <= n; k is {k}, n is {n}, right is {right}")
    return 1.0 - prod((n - right - drawn) / (n - drawn) for drawn in range(k))


def problem_scores(tallies: Sequence[Tally], k: int) -> dict[str, float]:
    """pass@k of each problem, by its id; problems with fewer than k judged answers are left out."""
    return {tally.id: pass_at_k(tally.judged, tally.right, k) for tally in tallies if tally.judged >= k}


def score(tallies: Sequence[Tally], k: int) -> PassAtK:
    """The mean over problems, with its interval. Raises RunFailed when no problem has k judged answers."""
    scores = np.array([*problem_scores(tallies, k).values()])
    if not len(scores):
        raise RunFailed(f"pass@{k} cannot be told: none of {len(tallies)} problems has {k} answers that could be judged")
    return PassAtK(k=k, value=float(scores.mean()), ci=mean_interval(scores), problems=len(scores))
