"""How many rows a matrix product may have at once and still give each row the bits that a tile of few rows gives it. Called by `numerics`.

A device picks its kernel by shape, and kernels sum in different orders; on x86 with jax 0.10 products of 2 to 32 rows share one order.
That is not taken for granted: every shape is tried, once a process, on sums that cancel, whose result is rounding error alone and
therefore differs wherever the order does (also in bfloat16, where ordinary sums would mostly be rounded to the same).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

MOST_ROWS = 32  # beyond it classes end on x86
MOST_ELEMENTS = 1 << 28  # of a matrix that is tried; larger ones stay with tiles
_COLUMNS_DRAWN = 1_021  # different columns of a tried matrix; then they repeat

Options = Mapping[str, str] | None


def times(x: jax.Array, matrix: jax.Array, turned: bool) -> jax.Array:
    """x [..., i] times matrix [i, o], or [o, i] where it is `turned`: as it lies, since a barrier on a transposed matrix copies it."""
    return jax.lax.dot_general(x, matrix, (((x.ndim - 1,), (int(turned),)), ((), ())))


def rows_at_once(tile: int, rows: int, width: int, columns: int, turned: bool, dtype: str, options: Options) -> int:
    """Rows of each product when `rows` of them meet a matrix [width, columns]: more than a tile, or fewer where there are few.

    `turned`: it lies as [columns, width]. `options` are the compiler's. Falls back to `tile`, which is right by definition.
    """
    wanted = min(max(rows, 2), MOST_ROWS)
    if wanted == tile or width * columns > MOST_ELEMENTS:
        return tile
    same = _as_in_tiles(tile, wanted, width, columns, turned, dtype, tuple(sorted((options or {}).items())))
    return wanted if same else tile


@cache
def _as_in_tiles(tile: int, rows: int, width: int, columns: int, turned: bool, dtype: str, options: tuple[tuple[str, str], ...]) -> bool:
    x, matrix = cancelling(rows, width, columns)
    lying = matrix.T if turned else matrix
    with ThreadPoolExecutor(1) as elsewhere:  # where nothing is being traced and no mesh is set
        return elsewhere.submit(_compare, tile, jnp.asarray(x, dtype), lying, turned, dict(options) or None).result()


def cancelling(rows: int, width: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """x [rows, width] and matrix [width, columns], of values that bfloat16 holds, whose product is 0 but for rounding and an odd entry."""
    rng = np.random.default_rng(0)
    half = width // 2
    sizes = 2.0 ** rng.integers(-8, 9, width)  # far apart, or the sums of such short numbers would be exact in float32
    x, matrix = rng.normal(size=(rows, width)) * sizes, rng.normal(size=(width, min(columns, _COLUMNS_DRAWN)))
    order = rng.permutation(width)  # partners lie anywhere
    first, second = order[:half], order[half : 2 * half]
    x[:, second], matrix[second] = -x[:, first], matrix[first]
    wide = np.resize(np.arange(matrix.shape[1]), columns)
    return x.astype(jnp.bfloat16).astype(np.float32), matrix.astype(jnp.bfloat16).astype(np.float32)[:, wide]


def _compare(tile: int, x: jax.Array, matrix: np.ndarray, turned: bool, options: dict[str, str] | None) -> bool:
    program: Callable[..., jax.Array] = jax.jit(partial(_same_bits, tile, turned), compiler_options=options)
    return bool(program(x, jnp.asarray(matrix, x.dtype)))


def _same_bits(tile: int, turned: bool, x: jax.Array, matrix: jax.Array) -> jax.Array:
    seal = jax.lax.optimization_barrier
    matrix = seal(matrix)
    padded = jnp.pad(x, ((0, -len(x) % tile), (0, 0)))
    tiles = [seal(times(seal(padded[start : start + tile]), matrix, turned)) for start in range(0, len(padded), tile)]
    return (seal(times(seal(x), matrix, turned)) == jnp.concatenate(tiles)[: len(x)]).all()
