"""Each pass visits every row once, in an order of its own that follows from the seed alone."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.envs.order import row_at


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 3))
def test_a_pass_visits_every_row_once(rows: int, seed: int, data_pass: int) -> None:
    visited = [row_at(data_pass * rows + place, rows, seed) for place in range(rows)]
    assert sorted(visited) == list(range(rows))


def test_passes_and_seeds_differ_and_repeat() -> None:
    orders = [[row_at(index, 50, seed) for index in range(start, start + 50)] for seed in (1, 2) for start in (0, 50)]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == [row_at(index, 50, 1) for index in range(50)]
