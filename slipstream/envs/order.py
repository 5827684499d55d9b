"""The order of rows: a fresh seeded permutation each pass over the data, so that nothing is skipped and nothing remembered.

A cursor that has to be saved can be saved wrongly; here the place in the data is a pure function of the prompt's index.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from slipstream.core.rng import generator

BANDS = 10  # of pass rates; within one the order is random, since finer differences are noise


def row_at(index: int, rows: int, seed: int) -> int:
    """The row behind the `index`-th prompt of a run: each pass of `rows` prompts visits every row once."""
    data_pass, place = divmod(index, rows)
    return int(permutation(rows, seed, data_pass)[place])


@lru_cache(maxsize=4)
def permutation(rows: int, seed: int, data_pass: int) -> np.ndarray:
    """The order of pass `data_pass`: int64 [rows], read-only because it is cached."""
    order = generator(seed, "row order", data_pass).permutation(rows)
    order.flags.writeable = False
    return order


def curriculum(rates: Sequence[float | None], seed: int, *, hard_first: bool = False) -> np.ndarray:
    """The order of a first pass by measured pass rates in [0, 1], easy rows first unless told otherwise: int64 [rows].

    Rows go by bands of a tenth, mixed by the seed within each; rows that were not measured come last. Later passes have no such
    order: by then the rates are of a model that is no more.
    """
    sign = 1 if hard_first else -1
    bands = np.array([BANDS if rate is None else sign * min(int(rate * BANDS + 1e-9), BANDS - 1) for rate in rates], np.int64)
    return np.lexsort((generator(seed, "curriculum").permutation(len(rates)), bands))
