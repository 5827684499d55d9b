"""Attention over pages by our own kernel: the definition in float64, and the same bits whatever stands beside a row."""

import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.attention.paged import as_stored, by_page, numbers, units_by_page
from slipstream.models.attention.rule import AttentionRule
from slipstream.models.cpu import packed, paged
from slipstream.models.cpu.attention import LANES, attention_kernel
from slipstream.models.cpu.compiled import register
from slipstream.models.cpu.tile import Registers
from tests.xla_products import xla_products

pytestmark = pytest.mark.skipif(not packed.available(), reason="no kernels of ours on this processor")

HEADS = ((4, 2), (9, 3), (7, 1), (8, 8), (10, 1))  # query and key heads: rows of a tile come out even, and do not


def drawn(units: int, tokens: int, heads: int, groups: int, width: int, page: int, pages: int, dtype: str):
    """q [u, x, h, k], pools, tables and positions of consecutive tokens anywhere in their sequences."""
    rng = np.random.default_rng(units * 100 + heads)
    count = units * pages + 1
    q = jnp.asarray(rng.normal(size=(units, tokens, heads, width)) * 2, dtype)
    keys, values = (jnp.asarray(rng.normal(size=(count, groups, *shape)), dtype) for shape in ((width, page), (page, width)))
    tables = rng.permutation(units * pages).reshape(units, pages).astype(np.int32)
    positions = (rng.integers(0, pages * page - tokens + 1, (units, 1)) + np.arange(tokens)).astype(np.int32)
    return q, as_stored(keys), as_stored(values), jnp.asarray(tables), jnp.asarray(positions)


def defined(q, keys, values, tables, positions, window: int, scale: float, softcap: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mixed values and log-sum-exps in float64, row by row."""
    q, keys, values = (np.asarray(numbers(array, q.dtype).astype(jnp.float32), np.float64) for array in (q, keys, values))
    tables, positions = np.asarray(tables), np.asarray(positions)
    units, tokens, heads, _ = q.shape
    groups = keys.shape[1]
    mixed, total = np.zeros(q.shape), np.zeros(q.shape[:3])
    for unit, token, head in np.ndindex(units, tokens, heads):
        group, last = head // (heads // groups), positions[unit, token]
        first = max(0, last - window + 1) if window else 0
        key = np.concatenate([keys[page, group] for page in tables[unit]], axis=1)[:, first : last + 1]
        value = np.concatenate([values[page, group] for page in tables[unit]])[first : last + 1]
        scores = scale * q[unit, token, head] @ key
        scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max())
        mixed[unit, token, head] = weights @ value / weights.sum()
        total[unit, token, head] = scores.max() + np.log(weights.sum())
    return mixed, total


def same_bits(one, other) -> bool:
    return np.array_equal(np.asarray(one).view(np.uint8), np.asarray(other).view(np.uint8))


@pytest.mark.parametrize("window", [0, 1, 20, 400])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_it_is_the_definition(heads: int, groups: int, dtype: str, window: int) -> None:
    for tokens, width, page, pages in ((1, 16, 16, 5), (5, 48, 32, 3), (8, 64, 64, 2)):
        given = drawn(4, tokens, heads, groups, width, page, pages, dtype)
        assert paged.attends(width, page)
        mixed, total = units_by_page(*given, window, AttentionRule(scale=0.2))
        expected, expected_total = defined(*given, window, 0.2)
        np.testing.assert_allclose(mixed.astype(jnp.float32), expected, atol=1e-5 if dtype == "float32" else 1.2e-2)
        np.testing.assert_allclose(total, expected_total, atol=1e-5)


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_soft_capped_it_is_the_definition(softcap: float) -> None:
    for dtype, atol in (("float32", 1e-5), ("bfloat16", 1.2e-2)):
        given = drawn(4, 5, 9, 3, 48, 32, 3, dtype)
        mixed, total = units_by_page(*given, 20, AttentionRule(scale=0.2, softcap=softcap))
        expected, expected_total = defined(*given, 20, 0.2, softcap)
        np.testing.assert_allclose(mixed.astype(jnp.float32), expected, atol=atol)
        np.testing.assert_allclose(total, expected_total, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_types_are_those_of_queries_and_the_same_bits_rounded_once(softcap: float | None) -> None:
    """Queries of bfloat16 against the same ones widened, over pages of either type."""
    for stored in ("float32", "bfloat16"):
        q, *rest = drawn(4, 5, 9, 3, 48, 32, 3, stored)
        q = q.astype(jnp.bfloat16)
        narrow, *sums = paged.attend(q, *rest, 20, 0.3, softcap)
        wide, *same_sums = paged.attend(q.astype(jnp.float32), *rest, 20, 0.3, softcap)
        assert (narrow.dtype, wide.dtype) == (jnp.bfloat16, jnp.float32)
        assert same_bits(narrow, wide.astype(jnp.bfloat16))
        assert all(map(same_bits, sums, same_sums))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_what_xla_computes_is_the_same_but_for_rounding(softcap: float | None) -> None:
    given, rule = drawn(3, 2, 6, 2, 32, 16, 4, "float32"), AttentionRule(scale=0.3, softcap=softcap)
    own = units_by_page(*given, 0, rule)
    with xla_products():
        assert not paged.attends(32, 16)
        theirs = units_by_page(*given, 0, rule)
    for ours, others in zip(own, theirs, strict=True):
        np.testing.assert_allclose(ours, others, atol=1e-5)
    assert not same_bits(own[0], theirs[0])


def test_a_row_knows_nothing_of_the_others() -> None:
    """Alone, with other tokens of its unit, other units and longer tables: the same bits, from one token to many."""
    q, keys, values, tables, positions = drawn(40, 8, 9, 3, 64, 64, 4, "float32")
    for window, rule in ((0, AttentionRule(scale=0.1)), (70, AttentionRule(scale=0.1)), (70, AttentionRule(scale=0.4, softcap=3.0))):
        whole, totals = units_by_page(q, keys, values, tables, positions, window, rule)
        for unit, token in ((0, 0), (7, 3), (39, 7)):
            one = (q[unit : unit + 1, token : token + 1], keys, values)
            place = positions[unit : unit + 1, token : token + 1]
            longer = np.concatenate([tables[unit : unit + 1], tables[:1]], axis=1)
            for table in (tables[unit : unit + 1], longer):
                alone, total = units_by_page(*one, table, place, window, rule)
                assert same_bits(alone[0, 0], whole[unit, token])
                assert same_bits(total[0, 0], totals[unit, token])
        rows = by_page(q[:, 2], keys, values, tables, positions[:, 2], window, rule)
        assert same_bits(rows, whole[:, 2])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_what_nobody_sees_is_not_felt(garbage: float, softcap: float | None) -> None:
    """Neither what a page holds beyond its sequence, nor before the window, nor pages of others."""
    q, keys, values, tables, positions = drawn(3, 2, 4, 2, 16, 16, 4, "float32")
    window, rule = 10, AttentionRule(scale=0.3, softcap=softcap)
    clean, _ = units_by_page(q, keys, values, tables, positions, window, rule)
    seen = np.zeros((keys.shape[0], 16), bool)
    for unit in range(3):
        first, last = int(positions[unit, 0]), int(positions[unit, -1])
        for place in range(max(0, first - window + 1), last + 1):
            seen[int(tables[unit, place // 16]), place % 16] = True
    keys, values = jnp.where(seen[:, None, None], keys, garbage), jnp.where(seen[:, None, :, None], values, garbage)
    assert same_bits(units_by_page(q, keys, values, tables, positions, window, rule)[0], clean)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_no_number_stays_in_its_row(dtype: str, softcap: float | None) -> None:
    """And is not lost: weights that went wrong must be noticed."""
    q, *rest = drawn(3, 2, 4, 2, 16, 16, 4, dtype)
    mixed, _ = units_by_page(q.at[1, 1, 2, 5].set(jnp.nan), *rest, 0, AttentionRule(scale=0.3, softcap=softcap))
    lost = np.isnan(np.asarray(mixed.astype(jnp.float32)))
    assert lost[1, 1, 2].all()
    assert lost.sum() == 16


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for other processors of this architecture")
@pytest.mark.parametrize("held", [Registers(lanes=8, vectors=2, rows=6), Registers(lanes=4, vectors=4, rows=6)], ids=["avx2", "four lanes"])
def test_other_processors_give_the_same_bits(held: Registers) -> None:
    for dtype in ("float32", "bfloat16"):
        name = f"test_attention_{held.lanes}_{dtype}"
        register(name, attention_kernel(dtype, dtype, held), "haswell")
        q, keys, values, tables, positions = drawn(3, 1, 10, 1, 48, 32, 3, dtype)
        for softcap in (None, 2.0):
            own = paged.attend(q, keys, values, tables, positions, 40, 0.3, softcap)
            scalars = (jnp.int32(40), jnp.float32(0.3), jnp.float32(softcap or 0.0))
            shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in own]
            theirs = jax.ffi.ffi_call(name, shapes)(q, keys, values, tables, positions, *scalars)
            assert all(map(same_bits, own, theirs))


def test_which_heads_and_pages_it_takes() -> None:
    assert paged.attends(LANES, 2 * LANES)
    assert not paged.attends(LANES + 8, LANES)
    assert not paged.attends(LANES, LANES // 2)
