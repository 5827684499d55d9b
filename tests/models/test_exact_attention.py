"""Exact attention over pages, whoever computes it: a row has the same bits alone and among the rows of its unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.attention.paged import as_stored, units_by_page
from slipstream.models.attention.rule import AttentionRule
from slipstream.models.numerics import EXACT, Numerics, Program
from tests.xla_products import xla_products

TOKENS, PAGE, PAGES, WINDOW = 8, 64, 3, 90
COMPARED = 50_000  # numbers, at least
HEADS = ((4, 2), (3, 3), (10, 1))  # query and key heads: products of 2 and 16 rows, 1 and 8, 10 and 80
XLAS, OURS = (8, 72), 16  # widths of heads


def check(heads: int, groups: int, width: int, dtype: str, softcap: float | None) -> None:
    """Mixed values, and log-sum-exps, which show every rounding: they stay float32."""
    rng = np.random.default_rng(heads)
    units = -(-COMPARED // (TOKENS * heads * width))
    q = jnp.asarray(rng.normal(size=(units, TOKENS, heads, width)) * 2, dtype)
    shapes = (width, PAGE), (PAGE, width)
    keys, values = (as_stored(jnp.asarray(rng.normal(size=(40, groups, *shape)), dtype)) for shape in shapes)
    tables = jnp.asarray(rng.integers(0, 40, (units, PAGES)), jnp.int32)
    positions = jnp.asarray(rng.integers(0, PAGES * PAGE - TOKENS + 1, (units, 1)) + np.arange(TOKENS), jnp.int32)
    program, rule = Program(_attended, static=("rule",)), AttentionRule(scale=0.4, softcap=softcap)
    together = program(q, keys, values, tables, positions, rule=rule, numerics=EXACT)
    rows, own_tables = q.reshape(-1, 1, heads, width), jnp.repeat(tables, TOKENS, axis=0)
    alone = program(rows, keys, values, own_tables, positions.reshape(-1, 1), rule=rule, numerics=EXACT)
    for whole, row in zip(together, alone, strict=True):
        differing = np.count_nonzero(bits(whole) != bits(row))
        assert not differing, f"{differing} of {whole.size} numbers differ"
    assert together[0].size >= COMPARED


def _attended(*given: jax.Array, rule: AttentionRule, numerics: Numerics) -> tuple[jax.Array, jax.Array]:
    return units_by_page(*given, WINDOW, rule, numerics)


def bits(numbers: jax.Array) -> np.ndarray:
    return np.asarray(numbers).reshape(-1).view(f"uint{8 * numbers.dtype.itemsize}")


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [*XLAS, OURS])
def test_a_row_has_the_same_bits_alone(width: int, dtype: str, softcap: float | None) -> None:
    """Processors with tiles multiply 16 rows of bfloat16 in another order than 2; exact products are of float32."""
    check(*HEADS[0], width, dtype, softcap)


@pytest.mark.parametrize(("heads", "groups"), HEADS[1:])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", XLAS)
def test_so_it_has_where_products_are_of_one_row_and_of_many(width: int, dtype: str, heads: int, groups: int) -> None:
    """XLA multiplies both in an order of their own."""
    check(heads, groups, width, dtype, None)


def test_so_it_has_where_all_products_are_xlas() -> None:
    with xla_products():
        check(*HEADS[0], OURS, "bfloat16", 2.0)
