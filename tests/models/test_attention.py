"""Attention of packed rows and of pages is what the definition says, in values and gradients, whoever computes it.

The oracle below goes query by query in float64 numpy and shares nothing with the product but the record of rows.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from slipstream.models.attention import registry
from slipstream.models.attention.chunked import BLOCK, chunked
from slipstream.models.attention.dense import attend, attention_layout, dense
from slipstream.models.attention.optional import tokamax
from slipstream.models.attention.paged import as_stored, by_page, gathered, in_pages, numbers, page_of, write
from slipstream.models.attention.rule import AttentionRule, PackedRows, attention_rule, related
from slipstream.models.spec import ModelSpec, RopeSpec
from tests.xla_products import xla_products

HEADS, KV_HEADS, WIDTH = 4, 2, 8
PLAIN, CAPPED = AttentionRule(scale=0.4), AttentionRule(scale=0.4, softcap=1.5)
IMPLEMENTATIONS = {"dense": dense, "chunked": chunked}


def packed(*parts: tuple[int, int, int, int]) -> PackedRows:
    """One row of parts (tokens, segment, parent, first position); segment 0 is padding, all at position 0."""
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    for tokens, segment, parent, first in parts:
        columns[0].extend([segment] * tokens)
        columns[1].extend([parent] * tokens)
        columns[2].extend(range(first, first + tokens) if segment else [0] * tokens)
    segments, parents, positions = (jnp.asarray([column], jnp.int32) for column in columns)
    return PackedRows(segments=segments, parents=parents, positions=positions)


SHORT = packed((9, 1, 1, 0), (6, 2, 1, 9), (4, 3, 1, 9), (5, 4, 4, 0), (3, 0, 0, 0))  # a prompt, two branches, a stranger, padding
LONG = packed((200, 1, 1, 0), (71, 2, 1, 200), (40, 3, 3, 0), (33, 4, 1, 200), (3, 0, 0, 0))  # 347 tokens: three blocks, none whole


def drawn(tokens: int, seed: int = 0) -> list[np.ndarray]:
    """q, k, v and a cotangent [1, t, heads, width], float32 but exact in bfloat16."""
    rng = np.random.default_rng(seed)
    shapes = [(1, tokens, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    return [rng.normal(size=shape).astype(ml_dtypes.bfloat16).astype(np.float32) for shape in shapes]


def oracle(q, k, v, cotangent, rows: PackedRows, window: int, rule: AttentionRule) -> list[np.ndarray]:
    """Mixed values and the gradients of their product with `cotangent` by q, k and v: float64, query by query."""
    q, k, v, cotangent = (np.asarray(array, np.float64)[0] for array in (q, k, v, cotangent))
    segments, parents, positions = (np.asarray(array)[0] for array in (rows.segments, rows.parents, rows.positions))
    mixed, dq, dk, dv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for query, head in np.ndindex(q.shape[:2]):
        kin = (segments == segments[query]) | (segments == parents[query])
        distance = positions[query] - positions
        seen = np.flatnonzero(kin & (distance >= 0) & ((distance < window) if window else True))
        shared = head // (HEADS // KV_HEADS)
        keys, values = k[seen, shared], v[seen, shared]
        scores = keys @ q[query, head] * rule.scale
        slope = np.full(len(seen), rule.scale)
        if rule.softcap:
            scores = rule.softcap * np.tanh(scores / rule.softcap)
            slope = slope * (1 - (scores / rule.softcap) ** 2)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed[query, head] = weights @ values
        of_weights = values @ cotangent[query, head]
        of_products = weights * (of_weights - weights @ of_weights) * slope
        dq[query, head] = of_products @ keys
        dk[seen, shared] += np.outer(of_products, q[query, head])
        dv[seen, shared] += np.outer(weights, cotangent[query, head])
    return [array[None] for array in (mixed, dq, dk, dv)]


def apply(attention, q, k, v, rows: PackedRows, window, rule: AttentionRule) -> jax.Array:
    return attention(q, k, v, rows, window, rule)


def computed(attention, inputs: list, rows: PackedRows, window, rule: AttentionRule, run=apply) -> list[np.ndarray]:
    """The same four from an implementation, compiled. A window that is a Python number is fixed when compiling."""
    fixed = window if isinstance(window, int) else None
    found = _computed(attention, rule, run, fixed, *(jnp.asarray(array) for array in inputs), rows, jnp.asarray(window))
    assert all(array.dtype == inputs[0].dtype for array in found)
    return [np.asarray(array, np.float32) for array in found]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _computed(attention, rule, run, fixed, q, k, v, cotangent, rows, window):
    mixed, pullback = jax.vjp(lambda *parts: run(attention, *parts, rows, window if fixed is None else fixed, rule), q, k, v)
    return mixed, *pullback(cotangent)


def without_padding(cotangent: np.ndarray, rows: PackedRows) -> np.ndarray:
    return np.where(np.asarray(rows.segments)[..., None, None] > 0, cotangent, 0)


def compare(found: list[np.ndarray], expected: list[np.ndarray], rows: PackedRows, tolerance: float) -> None:
    """Within `tolerance` of each array's largest entry; what padding mixes is nobody's business as long as it is a number."""
    real = np.asarray(rows.segments)[0] > 0
    for name, ours, theirs in zip(("values", "dq", "dk", "dv"), found, expected, strict=True):
        assert np.isfinite(ours).all(), name
        kept = real if name == "values" else slice(None)
        np.testing.assert_allclose(ours[:, kept], theirs[:, kept], rtol=0, atol=tolerance * np.abs(theirs).max(), err_msg=name)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@pytest.mark.parametrize(("window", "rule"), [(0, CAPPED), (4, PLAIN), (jnp.int32(4), CAPPED)], ids=str)
def test_a_short_row_is_the_definition(attention, rule: AttentionRule, window) -> None:
    q, k, v, cotangent = drawn(27)
    inputs = [q, k, v, without_padding(cotangent, SHORT)]
    compare(computed(attention, inputs, SHORT, window, rule), oracle(*inputs, SHORT, int(window), rule), SHORT, 2e-6)


@pytest.fixture(scope="module", params=[(0, CAPPED), (150, PLAIN)], ids=str)
def long_row(request: pytest.FixtureRequest):
    """Window, rule, inputs and what the definition gives; windows reach across one block's edge, or two."""
    window, rule = request.param
    q, k, v, cotangent = drawn(347)
    inputs = [q, k, v, without_padding(cotangent, LONG)]
    return window, rule, inputs, oracle(*inputs, LONG, window, rule)


def test_blocks_of_a_long_row_are_the_definition(long_row) -> None:
    window, rule, inputs, expected = long_row
    compare(computed(chunked, inputs, LONG, jnp.int32(window), rule), expected, LONG, 2e-6)


def test_rounding_is_all_that_bfloat16_changes() -> None:
    """Factors have 8 bits; 2 % of the largest entry is about five roundings. The window crosses edges of blocks."""
    q, k, v, cotangent = drawn(347)
    inputs = [q, k, v, without_padding(cotangent, LONG)]
    halves = [jnp.asarray(array, jnp.bfloat16) for array in inputs]
    compare(computed(chunked, halves, LONG, 40, CAPPED), oracle(*inputs, LONG, 40, CAPPED), LONG, 0.02)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_layers_in_a_checkpointed_scan_with_traced_windows(attention) -> None:
    """As the decoder runs it: the second layer reads what the first mixed, each with its own window."""
    q, k, v, cotangent = drawn(347)
    inputs, windows = [q, k, v, without_padding(cotangent, LONG)], (0, 33)

    def layers(attention, q, k, v, rows, _, rule):
        step = jax.checkpoint(lambda q, window: (attention(q, k, v, rows, window, rule), None))
        return jax.lax.scan(step, q, jnp.asarray(windows))[0]

    found = computed(attention, inputs, LONG, 0, CAPPED, layers)
    first = oracle(*inputs, LONG, windows[0], CAPPED)
    mixed, of_first, dk, dv = oracle(first[0], k, v, inputs[3], LONG, windows[1], CAPPED)
    _, dq, dk_first, dv_first = oracle(q, k, v, of_first, LONG, windows[0], CAPPED)
    compare(found, [mixed, dq, dk + dk_first, dv + dv_first], LONG, 3e-6)


def test_rows_of_a_batch_do_not_meet() -> None:
    """Unlike rows side by side: a block that one row sees and another does not is computed for the first only."""
    other = packed((130, 1, 1, 0), (128, 2, 2, 0), (80, 3, 3, 0), (9, 0, 0, 0))
    rows = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), LONG, other)
    inputs = [np.concatenate(pair) for pair in zip(drawn(347), drawn(347, seed=1), strict=True)]
    inputs[3] = without_padding(inputs[3], rows)
    found = computed(chunked, inputs, rows, 0, PLAIN)
    for index, row in enumerate((LONG, other)):
        expected = oracle(*(array[index : index + 1] for array in inputs), row, 0, PLAIN)
        compare([array[index : index + 1] for array in found], expected, row, 2e-6)


def arrays_in(jaxpr: Jaxpr) -> Iterator[tuple[int, ...]]:
    """Shapes of everything that a program computes or holds, programs inside it included."""
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        yield variable.aval.shape
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: isinstance(leaf, Jaxpr | ClosedJaxpr)):
            if isinstance(parameter, Jaxpr | ClosedJaxpr):
                yield from arrays_in(parameter.jaxpr if isinstance(parameter, ClosedJaxpr) else parameter)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_memory_grows_with_length_not_with_its_square(attention) -> None:
    """Over 1,000 tokens no array of the program, or of its gradient, has 1,000 twice; all scores at once of course do."""
    tokens = 1000
    rows = packed((600, 1, 1, 0), (400, 2, 2, 0))
    inputs = [jax.ShapeDtypeStruct((1, tokens, heads, WIDTH), jnp.float32) for heads in (HEADS, KV_HEADS, KV_HEADS)]

    def loss(q, k, v, window):
        return attention(q, k, v, rows, window, CAPPED).sum()

    program = jax.make_jaxpr(jax.value_and_grad(loss, (0, 1, 2)))(*inputs, jax.ShapeDtypeStruct((), jnp.int32))
    shapes = set(arrays_in(program.jaxpr))
    assert len(shapes) > 10
    square = [shape for shape in shapes if sum(length >= tokens for length in shape) > 1 or np.prod(shape) > 16 * tokens * WIDTH * HEADS]
    assert bool(square) == (attention is dense)


BLOCKS = packed((BLOCK, 1, 1, 0), (BLOCK, 2, 2, 0), (BLOCK, 3, 3, 0))
ALONE = packed((3 * BLOCK, 1, 1, 0))
UNSEEN = {  # rows, window, the block that holds NaN, and the blocks that never look at it
    "another segment": (BLOCKS, 0, 1, (0, 2)),
    "the future": (ALONE, 0, 2, (0, 1)),
    "beyond the window": (ALONE, BLOCK - 1, 0, (2,)),
}


@pytest.mark.parametrize("case", UNSEEN.values(), ids=UNSEEN)
def test_blocks_that_nobody_sees_are_not_computed(case) -> None:
    """NaN in every q, k, v and cotangent of a block: had any product with it been formed, it would show."""
    rows, window, poisoned, clean = case
    inputs = drawn(3 * BLOCK)
    for query in range(3):
        if query not in clean:
            inputs[3][:, query * BLOCK : (query + 1) * BLOCK] = 0
    before = computed(chunked, inputs, rows, jnp.int32(window), PLAIN)
    for array in inputs[:3]:
        array[:, poisoned * BLOCK : (poisoned + 1) * BLOCK] = np.nan
    after = computed(chunked, inputs, rows, jnp.int32(window), PLAIN)
    checked = 4 if rows is BLOCKS else 2  # keys that a poisoned query sees have poisoned gradients
    for query in clean:
        place = slice(query * BLOCK, (query + 1) * BLOCK)
        for ours, theirs in zip(after[:checked], before[:checked], strict=True):
            np.testing.assert_array_equal(ours[:, place], theirs[:, place])


@pytest.mark.parametrize("attention", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_finite_garbage_of_others_is_not_felt(attention) -> None:
    """Values of 1e15 in a stranger's segment, a branch and padding of the same block: the rest is the same to the bit, gradients too."""
    q, k, v, cotangent = drawn(27)
    felt = np.isin(np.asarray(SHORT.segments)[0], (1, 3))
    cotangent[:, ~felt] = 0
    before = computed(attention, [q, k, v, cotangent], SHORT, 0, CAPPED)
    for array in (q, k, v):
        array[:, ~felt] = 1e15
    after = computed(attention, [q, k, v, cotangent], SHORT, 0, CAPPED)
    for ours, theirs in zip(after, before, strict=True):
        np.testing.assert_array_equal(ours[:, felt], theirs[:, felt])
    for gradient in after[1:]:
        np.testing.assert_array_equal(gradient[:, ~felt], 0)


def test_the_rule_of_a_decoder() -> None:
    spec = ModelSpec(
        vocab=9,
        d_model=8,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=16,
        d_ff=8,
        rope=RopeSpec(theta=1e4),
        norm_eps=1e-5,
        tied=True,
        context=8,
    )
    assert attention_rule(spec) == AttentionRule(scale=0.25)
    assert attention_rule(replace(spec, query_scalar=64.0, attention_softcap=50.0)) == AttentionRule(scale=0.125, softcap=50.0)


PAGE, TABLE = 4, 6  # tokens of a page, pages of a sequence
SCRATCH = 15
# row: (table, position). Sequence 0 decodes; 1 shares its first two pages and has a chunk of three rows; 2 is at its last token;
# 3 has only begun; the rest are unused and point at the scratch page.
FIRST, SECOND, FULL, NEW, UNUSED = [7, 2, 9, 0, 0, 0], [7, 2, 4, 11, 0, 0], [3, 14, 1, 8, 6, 12], [5] + [SCRATCH] * 5, [SCRATCH] * TABLE
ROWS = [(FIRST, 9), (SECOND, 11), (SECOND, 12), (SECOND, 13), (FULL, 23), (NEW, 0), (UNUSED, 0), (UNUSED, 0)]
TABLES, POSITIONS = np.array([table for table, _ in ROWS]), np.array([position for _, position in ROWS])
PAGES = 16
PAGED = {"gathered": gathered, "by_page": by_page}


def paged_oracle(q, keys, values, window: int, rule: AttentionRule) -> np.ndarray:
    """Mixed values [n, h, k]: each row's tokens read from its pages one by one, float64."""
    mixed = np.zeros(q.shape)
    for row, head in np.ndindex(q.shape[:2]):
        shared = head // (HEADS // KV_HEADS)
        seen = range(max(0, POSITIONS[row] - window + 1) if window else 0, POSITIONS[row] + 1)
        places = [(TABLES[row][position // PAGE], position % PAGE, shared) for position in seen]
        scores = np.array([np.dot(np.float64(keys[place]), q[row, head]) for place in places]) * rule.scale
        if rule.softcap:
            scores = rule.softcap * np.tanh(scores / rule.softcap)
        weights = np.exp(scores - scores.max())
        mixed[row, head] = sum(weight * np.float64(values[place]) for weight, place in zip(weights / weights.sum(), places, strict=True))
    return mixed


def pool(seed: int = 0) -> list[np.ndarray]:
    """q [n, h, k], and keys and values [p, B, g, k] by page and token."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((len(ROWS), HEADS, WIDTH), *2 * [(PAGES, PAGE, KV_HEADS, WIDTH)])]


def run_paged(attention, q, keys, values, window, rule: AttentionRule, tables=TABLES) -> np.ndarray:
    run = jax.jit(attention, static_argnums=(6,) if isinstance(window, jax.Array) else (5, 6))
    keys, values = in_pages(jnp.asarray(keys), jnp.asarray(values), PAGE)
    mixed = run(jnp.asarray(q), keys, values, jnp.asarray(tables), jnp.asarray(POSITIONS), window, rule)
    assert mixed.dtype == q.dtype
    return np.asarray(mixed, np.float32)


@pytest.mark.parametrize("attention", PAGED.values(), ids=PAGED)
@pytest.mark.parametrize(("window", "rule"), [(0, PLAIN), (5, PLAIN), (jnp.int32(5), CAPPED), (jnp.int32(0), CAPPED)], ids=str)
def test_pages_are_the_definition(attention, window, rule: AttentionRule) -> None:
    inputs = pool()
    expected = paged_oracle(*inputs, int(window), rule)
    np.testing.assert_allclose(run_paged(attention, *inputs, window, rule), expected, rtol=0, atol=2e-6)
    halves = [jnp.asarray(array, jnp.bfloat16) for array in inputs]
    expected = paged_oracle(*(np.asarray(array, np.float32) for array in halves), int(window), rule)
    np.testing.assert_allclose(run_paged(attention, *halves, window, rule), expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("attention", PAGED.values(), ids=PAGED)
@pytest.mark.parametrize("garbage", [1e6, np.nan, np.inf])
def test_what_a_page_holds_beyond_its_sequence_is_not_felt(attention, garbage: float) -> None:
    """Every slot that no row's past names holds garbage, the scratch page's too: the rows in use are the same to the bit."""
    q, keys, values = pool()
    used = {(table[position // PAGE], position % PAGE) for table, last in ROWS[:6] for position in range(last + 1)}
    before = run_paged(attention, q, keys, values, 0, PLAIN)
    for place in np.ndindex(PAGES, PAGE):
        if place not in used:
            keys[place] = values[place] = garbage
    np.testing.assert_array_equal(run_paged(attention, q, keys, values, 0, PLAIN)[:6], before[:6])


@pytest.mark.parametrize("attention", PAGED.values(), ids=PAGED)
def test_where_pages_lie_and_how_long_tables_are_does_not_matter(attention) -> None:
    """The pool shuffled with its tables, and tables three times as long: the same to the bit for the one, to rounding for the other."""
    q, keys, values = pool()
    before = run_paged(attention, q, keys, values, 0, PLAIN)
    place = np.random.default_rng(3).permutation(PAGES)
    moved = [np.empty_like(array) for array in (keys, values)]
    for new, old in zip(moved, (keys, values), strict=True):
        new[place] = old
    np.testing.assert_array_equal(run_paged(attention, q, *moved, 0, PLAIN, place[TABLES]), before)
    longer = np.concatenate([TABLES, np.full((len(ROWS), 2 * TABLE), SCRATCH)], axis=1)
    np.testing.assert_allclose(run_paged(attention, q, keys, values, 0, PLAIN, longer), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("last", [0, 3, 4, 5, 23])
def test_the_longest_row_may_end_anywhere_in_its_page(last: int) -> None:
    """Values are one-hot by position and keys are zero: every position up to the last has the same share, none beyond it any."""
    values = jnp.eye(TABLE * PAGE).reshape(TABLE, PAGE, 1, TABLE * PAGE)
    pools = in_pages(jnp.zeros_like(values), values, PAGE)
    arrays = (jnp.zeros((1, 1, TABLE * PAGE)), *pools, jnp.arange(TABLE)[None], jnp.asarray([last]))
    expected = np.where(np.arange(TABLE * PAGE) <= last, 1 / (last + 1), 0)
    np.testing.assert_allclose(jax.jit(by_page, static_argnums=(5, 6))(*arrays, 0, PLAIN)[0, 0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("products", ["own", "xla"])
def test_writing_puts_each_row_in_its_page_and_nothing_else(products: str, dtype: str) -> None:
    with xla_products() if products == "xla" else nullcontext():
        _assert_written(dtype)


def _assert_written(dtype: str) -> None:
    layers, new = 3, np.random.default_rng(1).normal(size=(len(ROWS), KV_HEADS, WIDTH)).astype(dtype)
    before = np.zeros((layers, PAGES, PAGE, KV_HEADS, WIDTH), dtype)
    pages = page_of(jnp.asarray(TABLES), jnp.asarray(POSITIONS), PAGE)
    arguments = ((jnp.asarray(new), jnp.asarray(new)), pages, jnp.asarray(POSITIONS))
    keys, values = in_pages(jnp.asarray(before), jnp.asarray(before), PAGE)
    pools = [as_stored(part.reshape(layers, PAGES, *part.shape[1:])) for part in (keys, values)]
    written = jax.jit(write)(*pools, jnp.int32(1), *arguments)
    by_token = (numbers(written[0], jnp.dtype(dtype)).transpose(0, 1, 4, 2, 3), numbers(written[1], jnp.dtype(dtype)).swapaxes(2, 3))
    found = np.asarray(by_token[0])
    np.testing.assert_array_equal(found, by_token[1])
    for row, (table, position) in enumerate(ROWS[:6]):
        np.testing.assert_array_equal(found[1, table[position // PAGE], position % PAGE], new[row])
        before[1, table[position // PAGE], position % PAGE] = new[row]
    before[1, SCRATCH] = found[1, SCRATCH]  # unused rows
    np.testing.assert_array_equal(found, before)


def test_no_pool_of_bfloat16_is_widened_to_move_a_few_pages() -> None:
    """XLA CPU computes no bfloat16: it would turn whole pools to float32 and back for every layer's write and every page read."""
    q, *pools = (jnp.asarray(array, jnp.bfloat16) for array in pool())
    pools = [as_stored(part)[None] for part in in_pages(*pools, PAGE)]
    tables, positions = jnp.asarray(TABLES), jnp.asarray(POSITIONS)

    def write_and_attend(keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        new = q[:, :KV_HEADS]
        keys, values = write(keys, values, 0, (new, new), tables[:, 0], positions)
        return keys, values, by_page(q, keys[0], values[0], tables, positions, 0, PLAIN)

    text = jax.jit(write_and_attend).lower(*pools).compile().as_text()
    assert text is not None
    for part in pools:
        shape = f"{list(part.shape[1:])}".replace(" ", "")
        assert f"u16{shape}" in text
        assert f"32{shape}" not in text
        assert f"32[1,{shape[1:]}" not in text


@pytest.mark.parametrize("products", ["own", "xla"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_no_pool_is_copied_to_write_a_few_rows(rows: int, products: str) -> None:
    """Given away by its owner and written for two layers, each of which reads it: a single row too."""
    with xla_products() if products == "xla" else nullcontext():
        _assert_nothing_copied(rows)


def _assert_nothing_copied(rows: int) -> None:
    tables, positions = jnp.asarray(TABLES)[:rows], jnp.asarray(POSITIONS)[:rows]
    pools = [jnp.zeros((2, 40, KV_HEADS, 16, 16)) for _ in range(2)]
    q = jnp.ones((rows, HEADS, 16))

    def two_layers(keys: jax.Array, values: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        for layer in range(2):
            new = q[:, :KV_HEADS]
            keys, values = write(keys, values, layer, (new, new), tables[:, 0], positions)
            flat = [part.reshape(-1, *part.shape[2:]) for part in (keys, values)]
            q = by_page(q, *flat, tables + layer * 40, positions, 0, PLAIN)
        return keys, values, q

    text = jax.jit(two_layers, donate_argnums=(0, 1)).lower(*pools, q).compile().as_text()
    assert text is not None
    for part in pools:
        shape = f"{list(part.shape)}".replace(" ", "")
        assert f"f32{shape}" in text
        copies = [line for line in text.splitlines() if f"= f32{shape}" in line and " copy(" in line]
        assert not copies


def sees_the_next(q, k, v, rows, window, rule):
    return attend(q, *attention_layout(k, v), related(replace(rows, positions=rows.positions + 1), rows, window), rule)


def forgets_the_parent(q, k, v, rows, window, rule):
    return dense(q, k, v, replace(rows, parents=rows.segments), window, rule)


def forgets_the_window(q, k, v, rows, window, rule):
    return dense(q, k, v, rows, 0, rule)


def forgets_the_softcap(q, k, v, rows, window, rule):
    return dense(q, k, v, rows, window, replace(rule, softcap=None))


def gives_nan(q, k, v, rows, window, rule):
    return dense(q, k, v, rows, window, rule) * jnp.nan


def has_a_wrong_gradient(q, k, v, rows, window, rule):
    return dense(q, jax.lax.stop_gradient(k), v, rows, window, rule)


def has_a_nan_gradient(q, k, v, rows, window, rule):
    return dense(q, k, v, rows, window, rule) + 0 * jnp.sqrt(0 * q)


WRONG = [sees_the_next, forgets_the_parent, forgets_the_window, forgets_the_softcap, has_a_wrong_gradient, has_a_nan_gradient]
SHAPE: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 8, "rule": AttentionRule(scale=0.4, softcap=2.0)}


remembered = cache(registry._packed_outputs)  # each implementation is compiled once, though every probe of these tests runs the oracle


@pytest.fixture
def fresh_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is planted is probed, and forgotten after the test."""
    monkeypatch.setattr(registry, "_packed_outputs", remembered)
    registry.probe.cache_clear()
    yield
    registry.probe.cache_clear()


@pytest.mark.parametrize(
    ("planted", "dtype"),
    [*((wrong, "float32") for wrong in WRONG), (has_a_wrong_gradient, "bfloat16")],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
@pytest.mark.usefixtures("fresh_probe")
def test_a_wrong_implementation_is_found_out(monkeypatch: pytest.MonkeyPatch, planted, dtype: str) -> None:
    monkeypatch.setitem(registry.PACKED, "chunked", planted)
    first, second = registry.probe("packed", dtype=dtype, **SHAPE)
    assert (first.name, first.usable, second.name, second.usable) == ("chunked", False, "dense", True)
    assert first.cause.startswith("differs from the plain computation by ")
    assert registry.pick("packed", dtype=dtype, **SHAPE) == "dense"


@pytest.mark.parametrize(
    "error", [RuntimeError("no kernel"), NotImplementedError("sm_70"), AttributeError("moved"), ImportError("torn")], ids=repr
)
@pytest.mark.usefixtures("fresh_probe")
def test_one_that_raises_is_passed_over_and_its_words_are_kept(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setitem(registry.PACKED, "chunked", broken)
    first, second = registry.probe("packed", dtype="float32", **SHAPE)
    assert (first.name, first.usable, first.difference) == ("chunked", False, None)
    assert first.cause == f"{type(error).__name__}: {error}"
    assert second.usable


@pytest.mark.parametrize("wrong", ["position", "window", "softcap", "table"])
@pytest.mark.usefixtures("fresh_probe")
def test_wrong_pages_are_found_out(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def planted(q, keys, values, tables, positions, window, rule):
        positions = jnp.maximum(positions - (wrong == "position"), 0)
        tables = jnp.minimum(tables, 30) if wrong == "table" else tables
        return gathered(q, keys, values, tables, positions, 0 if wrong == "window" else window, PLAIN if wrong == "softcap" else rule)

    monkeypatch.setitem(registry.PAGED, "by_page", planted)
    found = registry.probe("paged", dtype="float32", **SHAPE)
    assert [(candidate.name, candidate.usable) for candidate in found] == [("by_page", False), ("gathered", True)]


@pytest.mark.usefixtures("fresh_probe")
def test_a_device_where_nothing_is_right_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the plain computation gives numbers: the causes of all are told."""
    for name in ("chunked", "dense"):
        monkeypatch.setitem(registry.PACKED, name, gives_nan)
    with pytest.raises(RuntimeError, match=r"no packed attention is right on this device: chunked: differs .* nan.*; dense: differs"):
        registry.pick("packed", dtype="float32", **SHAPE)


@pytest.mark.usefixtures("fresh_probe")
def test_the_choice_is_the_same_every_time() -> None:
    """On CPU the kernels of accelerators are not tried, and nothing is timed."""
    choices = []
    for _ in range(2):
        registry.probe.cache_clear()
        choices.append([registry.probe(kind, dtype="float32", **SHAPE) for kind in ("packed", "paged")])
    assert choices[0] == choices[1]
    assert [[candidate.name for candidate in found] for found in choices[0]] == [["chunked"], ["by_page"]]


def fake_tokamax() -> ModuleType:
    """The one function of it that is used: query [b, t, h, k], key and value [b, s, g, k], mask [b, 1, t, s]."""

    def dot_product_attention(query, key, value, bias=None, mask=None, *, scale=None, logits_soft_cap=None):
        repeats = query.shape[2] // key.shape[2]
        scores = scale * jnp.einsum("bthk,bshk->bhts", query, key.repeat(repeats, axis=2))
        if logits_soft_cap:
            scores = logits_soft_cap * jnp.tanh(scores / logits_soft_cap)
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        return jnp.einsum("bhts,bshk->bthk", weights, value.repeat(repeats, axis=2))

    module = ModuleType("tokamax")
    module.__dict__["dot_product_attention"] = dot_product_attention
    return module


@pytest.mark.parametrize(("window", "rule"), [(0, PLAIN), (4, CAPPED), (jnp.int32(4), PLAIN)], ids=str)
def test_tokamax_is_asked_for_the_definition(monkeypatch: pytest.MonkeyPatch, window, rule: AttentionRule) -> None:
    """Against a stand-in; version 0.0.12 itself (implementations xla and xla_chunked, on CPU) passed the probe when tried by hand."""
    monkeypatch.setitem(sys.modules, "tokamax", fake_tokamax())
    q, k, v, cotangent = drawn(27)
    inputs = [q, k, v, without_padding(cotangent, SHORT)]
    compare(computed(tokamax, inputs, SHORT, window, rule), oracle(*inputs, SHORT, int(window), rule), SHORT, 2e-6)


@pytest.mark.usefixtures("fresh_probe")
def test_kernels_of_accelerators_come_first_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setitem(sys.modules, "tokamax", None)  # as if not installed
    absent, next_one = registry.probe("packed", dtype="float32", **SHAPE)
    assert (absent.name, absent.usable, next_one.name, next_one.usable) == ("tokamax", False, "chunked", True)
    assert "tokamax" in absent.cause
    registry.probe.cache_clear()
    monkeypatch.setitem(sys.modules, "tokamax", fake_tokamax())
    assert registry.pick("packed", dtype="float32", **SHAPE) == "tokamax"
