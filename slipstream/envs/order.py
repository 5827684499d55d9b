"""The order of rows: a fresh seeded permutation each pass over the data, so that nothing is skipped and nothing remembered.

A cursor that has to be saved can be saved wrongly; here the place in the data is a pure function of the prompt's index.
"""

from functools import lru_cache

import numpy as np

from slipstream.core.rng import generator


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
