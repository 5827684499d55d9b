"""Largest differencing: every item once, equal numbers, near the best that there is, and the same every time."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.train.balance import equal_parts

COSTS = st.lists(st.integers(0, 50), min_size=1, max_size=40)


def sums(costs: Sequence[int], parts: list[tuple[int, ...]]) -> list[int]:
    return [sum(costs[index] for index in part) for part in parts]


@given(COSTS, st.integers(1, 6), st.integers(0, 2))
def test_every_item_is_in_one_part_and_no_part_is_over_full(costs: list[int], parts: int, spare: int) -> None:
    size = -(-len(costs) // parts) + spare
    found = equal_parts(costs, parts, size)
    assert len(found) == parts
    assert sorted(index for part in found for index in part) == list(range(len(costs)))
    assert max(map(len, found)) <= size
    assert sums(costs, found) == sorted(sums(costs, found), reverse=True)
    assert found == equal_parts(list(costs), parts, size)
    assert sums(costs, found)[0] - sums(costs, found)[-1] <= max(costs)


def best_of(costs: tuple[int, ...], parts: int, size: int) -> int:
    """The least possible dearest part, by trying everything."""
    if parts == 1:
        return sum(costs)
    first, rest = costs[0], costs[1:]  # the first item's part, in all ways
    found = sum(costs)
    for chosen in combinations(range(len(rest)), size - 1):
        part = first + sum(rest[index] for index in chosen)
        if part < found:
            left = tuple(rest[index] for index in range(len(rest)) if index not in chosen)
            found = min(found, max(part, best_of(left, parts - 1, size)))
    return found


@given(st.sampled_from([(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2)]), st.data())
def test_the_dearest_part_is_near_the_optimum(shape: tuple[int, int], data: st.DataObject) -> None:
    """Proven bounds: two items a part, the optimum; two parts, 7/6 (Tsai 1992); three items a part, 4/3 (Michiels et al. 2003)."""
    parts, size = shape
    costs = data.draw(st.lists(st.integers(0, 30), min_size=parts * size, max_size=parts * size))
    found, best = sums(costs, equal_parts(costs, parts, size))[0], best_of(tuple(costs), parts, size)
    assert best <= found
    assert found * 6 <= best * (6 if size == 2 else 7 if parts == 2 else 8)


def test_too_many_items_are_refused() -> None:
    with pytest.raises(ValueError, match="5 items do not fit 2 parts of 2"):
        equal_parts([1] * 5, 2, 2)


def test_nothing_is_shared_out_as_nothing() -> None:
    assert equal_parts([], 3, 0) == [(), (), ()]
    assert equal_parts([], 2, 4) == [(), ()]
