"""Comparing is by problem, over those that both could judge; what does not compare is refused with every reason."""

from dataclasses import replace

import pytest

from slipstream.core.errors import UsageError
from slipstream.core.records import Tally
from slipstream.loop.comparison import Scored, compare


def tallies(right: list[int], judged: int = 4) -> tuple[Tally, ...]:
    return tuple(Tally(id=f"p{place}", judged=judged, right=count) for place, count in enumerate(right))


ONE = Scored(task="t", format={"form": "f"}, problems_hash="h", drawn=4, k=(1, 4), tallies=tallies([0, 1, 2, 4]))


def test_a_difference_is_paired_by_problem() -> None:
    other = replace(ONE, k=(1, 2, 4), tallies=tallies([1, 1, 0, 4])[::-1])
    one, four = compare(ONE, other)
    assert (one.k, one.first, one.second, one.value) == (1, 7 / 16, 6 / 16, pytest.approx(-1 / 16))
    assert (one.better, one.worse, one.problems) == (1, 1, 4)
    assert one.ci[0] < -1 / 16 < one.ci[1]
    assert (four.k, four.first, four.second, four.better, four.worse) == (4, 0.75, 0.75, 1, 1)
    assert compare(other, ONE)[0].value == pytest.approx(1 / 16)


def test_problems_without_enough_verdicts_on_either_side_do_not_count() -> None:
    few = replace(ONE, tallies=(Tally(id="p0", judged=0, right=0), Tally(id="p1", judged=3, right=3), *ONE.tallies[2:]))
    one, four = compare(ONE, few)
    assert (one.problems, one.first, one.second) == (3, 7 / 12, (1 + 0.5 + 1) / 3)
    assert four.problems == 2
    none = replace(ONE, tallies=tallies([0, 0, 0, 0], judged=0))
    with pytest.raises(UsageError, match="pass@1: no problem has 1 judged answers in both"):
        compare(ONE, none)


def test_what_does_not_compare_is_refused_with_every_reason() -> None:
    other = Scored(task="u", format={"form": "g"}, problems_hash="i", drawn=8, k=(1,), tallies=tallies([1, 1, 1, 1, 1])[1:])
    with pytest.raises(UsageError) as caught:
        compare(ONE, other)
    assert str(caught.value).splitlines() == [
        "these evaluations do not compare:",
        "  task: 't' against 'u'",
        "  form: 'f' against 'g'",
        "  problems: 1 are only in the first and 1 only in the second, 3 in both",
        "  n: 4 against 8 answers a problem",
    ]
    with pytest.raises(UsageError, match="the same ids with other questions or answers"):
        compare(ONE, replace(ONE, problems_hash="j"))
