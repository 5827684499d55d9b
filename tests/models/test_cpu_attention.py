"""Attention over pages by our own kernel: the definition in float64, and the same bits whatever stands beside a row."""

import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir

from slipstream.models.attention.paged import as_stored, by_page, numbers, units_by_page
from slipstream.models.attention.rule import AttentionRule
from slipstream.models.cpu import packed, paged
from slipstream.models.cpu.attention import LANES, attention_kernel
from slipstream.models.cpu.compiled import register
from slipstream.models.cpu.emit import counting, element, f32, i64, nothing, pointer
from slipstream.models.cpu.exponential import LOWEST, define_exponential
from slipstream.models.cpu.handler import Call, Kernel
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


def defined(q, keys, values, tables, positions, window: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
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


def test_what_xla_computes_is_the_same_but_for_rounding() -> None:
    given = drawn(3, 2, 6, 2, 32, 16, 4, "float32")
    own = units_by_page(*given, 0, AttentionRule(scale=0.3))
    with xla_products():
        assert not paged.attends(32, 16)
        theirs = units_by_page(*given, 0, AttentionRule(scale=0.3))
    for ours, others in zip(own, theirs, strict=True):
        np.testing.assert_allclose(ours, others, atol=1e-5)
    assert not same_bits(own[0], theirs[0])


def test_a_row_knows_nothing_of_the_others() -> None:
    """Alone, with other tokens of its unit, other units and longer tables: the same bits, from one token to many."""
    q, keys, values, tables, positions = drawn(40, 8, 9, 3, 64, 64, 4, "float32")
    rule = AttentionRule(scale=0.1)
    for window in (0, 70):
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


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_what_nobody_sees_is_not_felt(garbage: float) -> None:
    """Neither what a page holds beyond its sequence, nor before the window, nor pages of others."""
    q, keys, values, tables, positions = drawn(3, 2, 4, 2, 16, 16, 4, "float32")
    window, rule = 10, AttentionRule(scale=0.3)
    clean, _ = units_by_page(q, keys, values, tables, positions, window, rule)
    seen = np.zeros((keys.shape[0], 16), bool)
    for unit in range(3):
        first, last = int(positions[unit, 0]), int(positions[unit, -1])
        for place in range(max(0, first - window + 1), last + 1):
            seen[int(tables[unit, place // 16]), place % 16] = True
    keys, values = jnp.where(seen[:, None, None], keys, garbage), jnp.where(seen[:, None, :, None], values, garbage)
    assert same_bits(units_by_page(q, keys, values, tables, positions, window, rule)[0], clean)


def test_what_is_no_number_stays_in_its_row() -> None:
    """And is not lost: weights that went wrong must be noticed."""
    q, *rest = drawn(3, 2, 4, 2, 16, 16, 4, "float32")
    mixed, _ = units_by_page(q.at[1, 1, 2, 5].set(jnp.nan), *rest, 0, AttentionRule(scale=0.3))
    lost = np.isnan(np.asarray(mixed))
    assert lost[1, 1, 2].all()
    assert lost.sum() == 16


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for other processors of this architecture")
@pytest.mark.parametrize("held", [Registers(lanes=8, vectors=2, rows=6), Registers(lanes=4, vectors=4, rows=6)], ids=["avx2", "four lanes"])
def test_other_processors_give_the_same_bits(held: Registers) -> None:
    for dtype in ("float32", "bfloat16"):
        name = f"test_attention_{held.lanes}_{dtype}"
        register(name, attention_kernel(dtype, held), "haswell")
        q, keys, values, tables, positions = drawn(3, 1, 10, 1, 48, 32, 3, dtype)
        own = paged.attend(q, keys, values, tables, positions, 40, 0.3)
        numbers = (tables, positions, jnp.int32(40), jnp.float32(0.3))
        theirs = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in own])(
            q.astype(jnp.float32), keys, values, *numbers
        )
        assert all(map(same_bits, own, theirs))


def test_which_heads_and_pages_it_takes() -> None:
    assert paged.attends(LANES, 2 * LANES)
    assert not paged.attends(LANES + 8, LANES)
    assert not paged.attends(LANES, LANES // 2)


def _exponential_kernel() -> Kernel:
    """Numbers float32 [n], n a multiple of the lanes, to their exponentials."""

    def read(call: Call):
        count = call.length(0, 0)
        return {"x": call.data(0), "out": call.data(1), "count": count}, i64(1), i64(0)

    def define_unit(module: ir.Module, job) -> ir.Function:
        exponential = define_exponential(module, LANES)
        made = ir.Function(module, ir.FunctionType(nothing, [pointer, i64]), "unit")
        builder = ir.IRBuilder(made.append_basic_block())
        x, out, count = (job.get(builder, made.args[0], name) for name in ("x", "out", "count"))
        with counting(builder, i64(0), count, LANES) as loop:
            vector = builder.load(element(builder, f32, x, loop.index), align=4, typ=ir.VectorType(f32, LANES))
            builder.store(builder.call(exponential, [vector]), element(builder, f32, out, loop.index), align=4)
        builder.ret_void()
        return made

    return Kernel(
        name="exponential_alone", arguments=1, job={"x": pointer, "out": pointer, "count": i64}, read=read, define_unit=define_unit
    )


def test_the_exponential_is_right_to_about_a_unit_in_the_last_place() -> None:
    register("test_exponential", _exponential_kernel())
    x = np.concatenate([-np.logspace(-8, np.log10(-LOWEST), 100_000), [0.0, -0.0, LOWEST, -88.0, -1e30, -np.inf, np.nan], np.zeros(9)])
    x = x.astype(np.float32)[: x.size // LANES * LANES]
    found = np.asarray(jax.ffi.ffi_call("test_exponential", jax.ShapeDtypeStruct(x.shape, jnp.float32))(jnp.asarray(x)))
    expected = np.exp(x.astype(np.float64))
    near = x >= LOWEST
    assert np.abs(found[near] / expected[near] - 1).max() < 1.5 * 2**-23
    assert (found[x == 0] == 1).all()
    assert (found[x < LOWEST] == 0).all()
    assert np.isnan(found[np.isnan(x)]).all()
