"""Intervals over problems cover the truth as often as they say, and are never of zero width."""

from math import comb

import numpy as np
import pytest

from slipstream.loop.intervals import mean_interval, paired_interval, wilson_interval

RUNS = 1_000  # of each simulation: a share of 0.95 is known to 0.0069
SLACK = 3 * 0.0069  # of a share that should be at least 0.95; the seeds are fixed


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (1, 1, 0.2065493, 1.0),
        (50, 100, 0.4038298, 0.5961702),
    ],
)
def test_wilsons_interval_has_its_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=2e-5)
    scores = np.repeat([1.0, 0.0], [successes, trials - successes])
    assert mean_interval(scores) == pytest.approx((low, high), abs=2e-5)  # of right and wrong it is the same


@pytest.mark.parametrize("trials", [16, 64, 256])
def test_wilsons_interval_covers_the_true_share_nineteen_times_in_twenty(trials: int) -> None:
    """Exact coverage from the binomial distribution: 95 % on average over the shares, and nowhere far below."""
    shares = np.linspace(0.02, 0.98, 97)
    bounds = [wilson_interval(successes, trials) for successes in range(trials + 1)]
    coverage = []
    for share in shares:
        weights = [comb(trials, hits) * share**hits * (1 - share) ** (trials - hits) for hits in range(trials + 1)]
        coverage.append(sum(weight for weight, (low, high) in zip(weights, bounds, strict=True) if low <= share <= high))
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.012)
    assert min(coverage) > 0.88


def pass_at_k(right: np.ndarray, n: int, k: int) -> np.ndarray:
    """By the definition: k answers drawn from n without putting back, none of them right."""
    table = np.array([1 - comb(n - hits, k) / comb(n, k) for hits in range(n + 1)])
    return table[right]


def coverage(interval, scores: np.ndarray, truth: float) -> float:
    """Share of the rows whose interval holds the truth."""
    bounds = np.array([interval(row) for row in scores])
    return float(np.mean((bounds[:, 0] <= truth) & (truth <= bounds[:, 1])))


POPULATIONS = {  # of problems' chances to be solved: Beta(a, b)
    "half solved, half not": (0.3, 0.3),
    "all the same": (8.0, 8.0),
    "hard": (0.1, 2.0),
    "easy": (2.0, 0.2),
}


@pytest.mark.parametrize("problems", [30, 300])
@pytest.mark.parametrize("population", POPULATIONS)
def test_the_interval_of_a_mean_covers_the_truth(population: str, problems: int) -> None:
    """At least 95 %, to the simulation's own error; a bootstrap or t interval covers 40 to 90 % where most scores are equal."""
    a, b = POPULATIONS[population]
    rng = np.random.default_rng(1)
    everyone = rng.beta(a, b, 400_000)
    for n, k in ((4, 1), (8, 4), (32, 8)):
        right = rng.binomial(n, rng.beta(a, b, (RUNS, problems)))
        covered = coverage(mean_interval, pass_at_k(right, n, k), float(np.mean(1 - (1 - everyone) ** k)))
        assert covered > 0.95 - SLACK, (n, k)
        if population == "half solved, half not":  # where the normal approximation is good it is no wider than it must be
            assert covered < 0.95 + SLACK


@pytest.mark.parametrize("problems", [30, 300])
@pytest.mark.parametrize("population", POPULATIONS)
def test_the_interval_of_a_difference_covers_none_where_there_is_none(population: str, problems: int) -> None:
    a, b = POPULATIONS[population]
    rng = np.random.default_rng(2)
    for n, k in ((1, 1), (8, 4), (32, 8)):
        chances = rng.beta(a, b, (RUNS, problems))
        one, other = (pass_at_k(rng.binomial(n, chances), n, k) for _ in range(2))
        assert coverage(paired_interval, other - one, 0.0) > 0.95 - SLACK, (n, k)


@pytest.mark.parametrize("lead", [0.1, 0.4])
def test_the_interval_of_a_difference_covers_the_true_one(lead: float) -> None:
    rng = np.random.default_rng(3)
    chances = rng.uniform(0, 1 - lead, (RUNS, 100))
    for n in (1, 8):
        one, other = (pass_at_k(rng.binomial(n, chances + more), n, 1) for more in (0.0, lead))
        covered = coverage(paired_interval, other - one, lead)
        assert 0.95 - SLACK < covered < 0.98, n


def test_full_agreement_has_width() -> None:
    for score in (0.0, 1.0):
        low, high = mean_interval(np.full(30, score))
        assert high - low == pytest.approx(0.1135, abs=1e-4)  # Wilson's of 30 of 30
        assert min(abs(low - score), abs(high - score)) < 1e-12
    low, high = mean_interval(np.full(30, 0.5))
    assert 0.05 < high - low < 0.3
    assert low < 0.5 < high
    low, high = paired_interval(np.zeros(30))
    assert (low, high) == pytest.approx((-0.0866, 0.0866), abs=1e-4)  # 1.96 sqrt(2 / 32 / 32)
    assert paired_interval(np.array([1.0])) == pytest.approx((1 / 3 - 1.959964 * np.sqrt(8 / 27), 1.0))


def test_bonett_and_prices_interval() -> None:
    """Of 40 pairs, 8 won and 2 lost: p1 = 9/42, p2 = 3/42."""
    mean = 6 / 42
    half = 1.959964 * np.sqrt((12 / 42 - mean**2) / 42)
    assert paired_interval(np.repeat([1.0, -1.0, 0.0], [8, 2, 30])) == pytest.approx((mean - half, mean + half))


def test_nothing_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)
    with pytest.raises(ValueError, match="at least one trial"):
        mean_interval(np.array([]))
    with pytest.raises(ValueError, match="at least one difference"):
        paired_interval(np.array([]))
