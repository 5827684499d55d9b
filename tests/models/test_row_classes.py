"""Products of more rows than a tile, or fewer, where they give the tile's bits; and that the trial would see where they do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models import row_classes
from slipstream.models.numerics import EXACT, FAST, Numerics, _compiler_options
from slipstream.models.row_classes import MOST_ROWS, cancelling, rows_at_once, times
from tests.xla_products import xla_products


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_trial_sees_another_order_of_summing(dtype: str) -> None:
    """By numpy: the same products summed forwards and backwards in float32, and rounded to the dtype."""
    x, matrix = cancelling(3, 48, 1_500)
    terms = x[:, :, None] * matrix[None]
    forwards, backwards = (
        np.add.accumulate(part, axis=1, dtype=np.float32)[:, -1].astype(jnp.dtype(dtype)) for part in (terms, terms[:, ::-1])
    )
    assert (forwards != backwards).mean() > 0.9
    assert np.abs(forwards.astype(np.float64)).max() < 1e-5 * np.abs(x).max()
    assert matrix.shape == (48, 1_500)


def test_an_odd_width_leaves_one_term_alone() -> None:
    x, matrix = cancelling(2, 7, 5)
    assert (np.abs(x @ matrix) > 1e-3).any()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [2, 8, 24, MOST_ROWS, 100])
def test_rows_at_once_give_the_bits_of_tiles(rows: int, turned: bool) -> None:
    """On other numbers than those of the trial."""
    rng = np.random.default_rng(1)
    x, matrix = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((rows, 64), (96, 64) if turned else (64, 96)))
    with xla_products():
        found = EXACT.product(x, matrix, turned)
    padded = jnp.pad(x, ((0, -rows % EXACT.row_tile), (0, 0)))
    tiles = [np.asarray(times(padded[start : start + EXACT.row_tile], matrix, turned)) for start in range(0, len(padded), EXACT.row_tile)]
    np.testing.assert_allclose(found, x @ (matrix.T if turned else matrix), atol=1e-4, rtol=0)
    assert np.array_equal(np.asarray(found).view(np.int32), np.concatenate(tiles)[:rows].view(np.int32))


@pytest.mark.parametrize("turned", [False, True])
def test_the_gradient_of_a_tiled_product_is_that_of_a_plain_one(turned: bool) -> None:
    rng = np.random.default_rng(2)
    x, matrix, weight = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((20, 6), (5, 6) if turned else (6, 5), (20, 5)))

    def gradients(numerics: Numerics) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, matrix: (weight * numerics.product(x, matrix, turned)).sum(), (0, 1))(x, matrix)

    with xla_products():
        tiled = gradients(EXACT)
    for found, expected in zip(tiled, gradients(FAST), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_rows_that_give_other_bits_stay_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def never(*shape: object) -> bool:
        asked.append(shape[1:5])  # pyright: ignore[reportArgumentType]
        return False

    monkeypatch.setattr(row_classes, "_as_in_tiles", never)
    assert [rows_at_once(16, rows, 64, 96, True, "float32", None) for rows in (1, 16, 40)] == [16] * 3
    assert asked == [(2, 64, 96, True), (MOST_ROWS, 64, 96, True)]  # a tile needs no trial
    assert rows_at_once(16, 40, 1 << 15, 1 << 14, False, "float32", None) == 16
    assert len(asked) == 2  # too large to try


def test_a_product_in_other_order_fails_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_classes, "_same_bits", _reversed_sums)
    assert not row_classes._as_in_tiles(16, 5, 33, 7, False, "float32", tuple(sorted((_compiler_options() or {}).items())))


def _reversed_sums(tile: int, turned: bool, x: jnp.ndarray, matrix: jnp.ndarray) -> jnp.ndarray:
    """What `_same_bits` compares, but the whole product runs over the width from its other end."""
    return (x @ matrix == x[:, ::-1] @ matrix[::-1]).all()
