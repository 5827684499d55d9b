"""Each pass visits every row once, in an order of its own that follows from the seed alone; a curriculum goes by bands of difficulty."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slipstream.envs.order import curriculum, row_at


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 3))
def test_a_pass_visits_every_row_once(rows: int, seed: int, data_pass: int) -> None:
    visited = [row_at(data_pass * rows + place, rows, seed) for place in range(rows)]
    assert sorted(visited) == list(range(rows))


def test_passes_and_seeds_differ_and_repeat() -> None:
    orders = [[row_at(index, 50, seed) for index in range(start, start + 50)] for seed in (1, 2) for start in (0, 50)]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == [row_at(index, 50, 1) for index in range(50)]


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 3), st.booleans())
def test_a_curriculum_goes_through_the_bands_once(rates: list[float | None], seed: int, hard_first: bool) -> None:
    order = curriculum(rates, seed, hard_first=hard_first).tolist()
    assert sorted(order) == list(range(len(rates)))
    told = [rates[place] for place in order]
    measured = [rate for rate in told if rate is not None]
    assert told[len(measured) :] == [None] * (len(told) - len(measured))
    rising = measured if hard_first else measured[::-1]
    assert all(later > earlier - 0.1 - 1e-6 for earlier, later in pairwise(rising))


def test_rows_of_one_band_are_mixed_by_the_seed() -> None:
    rates = [0.71 + 0.001 * (row % 20) for row in range(40)]
    orders = [curriculum(rates, seed).tolist() for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != sorted(orders[0])
