"""pass@k is the share of k-subsets with a right answer, whatever the numbers; problems are averaged, those without verdicts left out."""

from itertools import combinations
from math import comb

import pytest

from slipstream.core.errors import RunFailed
from slipstream.core.records import Tally
from slipstream.loop.pass_at_k import pass_at_k, score


def test_it_is_the_share_of_all_subsets() -> None:
    for n in range(1, 8):
        for right in range(n + 1):
            answers = [place < right for place in range(n)]
            for k in range(1, n + 1):
                subsets = [any(chosen) for chosen in combinations(answers, k)]
                assert pass_at_k(n, right, k) == pytest.approx(sum(subsets) / len(subsets), abs=1e-12)


def test_large_numbers_neither_overflow_nor_lose_digits() -> None:
    assert pass_at_k(10_000, 3, 5_000) == pytest.approx(1 - comb(9_997, 5_000) / comb(10_000, 5_000), rel=1e-9)
    assert pass_at_k(100_000, 1, 1) == pytest.approx(1e-5, rel=1e-9)
    assert pass_at_k(32, 0, 32) == 0.0
    assert pass_at_k(32, 1, 32) == 1.0


@pytest.mark.parametrize(("n", "right", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_what_cannot_be_estimated_is_refused_with_the_numbers(n: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}, n is {n}, right is {right}"):
        pass_at_k(n, right, k)


def test_problems_are_averaged_and_those_without_enough_verdicts_do_not_count() -> None:
    tallies = [
        Tally(id="a", judged=4, right=1),
        Tally(id="b", judged=4, right=0),
        Tally(id="c", judged=2, right=2),
        Tally(id="d", judged=0, right=0),
    ]
    one, three = score(tallies, 1), score(tallies, 3)
    assert (one.value, one.problems) == (pytest.approx((0.25 + 0 + 1) / 3), 3)
    assert (three.value, three.problems) == (pytest.approx(0.75 / 2), 2)  # 3 of the 4 subsets of a hold the right answer
    assert one.ci[0] < one.value < one.ci[1]
    with pytest.raises(RunFailed, match="pass@5 cannot be told: none of 4 problems has 5 answers"):
        score(tallies, 5)
