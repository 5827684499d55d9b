"""Every family computes what transformers computes: packed, in blocks, scanned, over pages, and greedily for 64 tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.attention.paged import page_of
from slipstream.models.attention.registry import PACKED, PAGED
from slipstream.models.attention.rule import PackedRows
from slipstream.models.decoder import empty_pages, logits, packed_hidden_states, paged_hidden_states
from tests.goldens.read import FAMILIES, golden
from tests.models.families import golden_model, packed_row

TOLERANCE = 1e-4  # of float32 logits with a deviation of 1.5 to 2; transformers' own differ by 1e-5 from float64
PAGE, BLOCKS = 8, 10  # tokens of a page, pages of a sequence


@partial(jax.jit, static_argnames=("spec", "attention", "scan", "remat"))
def row_logits(params, spec, tokens, segments, positions, attention: str, scan: bool, remat: bool):
    rows = PackedRows(segments=segments, parents=segments, positions=positions)
    hidden = packed_hidden_states(params, spec, tokens, rows, PACKED[attention], scan=scan, remat=remat).hidden
    return logits(params, spec, hidden)[0]


@pytest.mark.parametrize("layout", [("dense", False, False), ("dense", True, True), ("chunked", True, False)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows(family: str, layout: tuple[str, bool, bool]) -> None:
    """Three prompts in one row: each reads as if it were alone."""
    spec, params = golden_model(family)
    known = golden(family)
    found = row_logits(params, spec, *packed_row([known.tokens_b, known.tokens, known.tokens_c], 64), *layout)
    start = 0
    for expected in (known.logits_b, known.logits, known.logits_c):
        np.testing.assert_allclose(found[start : start + len(expected)], expected, atol=TOLERANCE, rtol=0)
        start += len(expected)


@partial(jax.jit, static_argnames=("spec", "attention", "scan"))
def step(params, spec, pages, tokens, positions, tables, attention: str, scan: bool):
    places = page_of(tables, positions, PAGE)

    def attend(q, keys, values, first, window, rule):
        return PAGED[attention](q, keys, values, tables + first, positions, window, rule)

    found = paged_hidden_states(params, spec, pages, tokens, positions, places, attend, scan=scan)
    return found.state, logits(params, spec, found.hidden)


@pytest.mark.parametrize(("attention", "scan"), [("gathered", False), ("by_page", True)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_paged_cache(family: str, attention: str, scan: bool) -> None:
    """Two prompts and a stranger's row in one call a step, in chunks of several tokens, pages in disorder."""
    spec, params = golden_model(family)
    known = golden(family)
    pages = empty_pages(spec, 2 * BLOCKS + 1, PAGE, jnp.float32)
    order = np.random.default_rng(0).permutation(2 * BLOCKS).reshape(2, BLOCKS)
    scratch = np.full(BLOCKS, 2 * BLOCKS)
    found = {0: [], 1: []}
    for chunk in range(5):
        rows = [(0, place) for place in range(8 * chunk, 8 * chunk + 8)] + [(1, place) for place in range(2 * chunk, 2 * chunk + 2)]
        rows = [row for row in rows if row[1] < (len(known.tokens), len(known.tokens_b))[row[0]]]
        unused = 11 - len(rows)
        tokens = [int((known.tokens, known.tokens_b)[which][place]) for which, place in rows] + [0] * unused
        tables = np.stack([order[which] for which, _ in rows] + [scratch] * unused)
        positions = jnp.asarray([place for _, place in rows] + [0] * unused, jnp.int32)
        pages, new = step(params, spec, pages, jnp.asarray(tokens, jnp.int32), positions, jnp.asarray(tables), attention, scan)
        for (which, _), row in zip(rows, np.asarray(new), strict=False):
            found[which].append(row)
    np.testing.assert_allclose(found[0], known.logits, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(found[1], known.logits_b, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_continuation(family: str) -> None:
    """64 tokens, one a step, over the paged cache."""
    spec, params = golden_model(family)
    known = golden(family)
    sequence = known.tokens[: known.greedy_prompt].tolist()
    pages = empty_pages(spec, BLOCKS + 1, PAGE, jnp.float32)
    tables = jnp.full((11, BLOCKS), BLOCKS).at[0].set(jnp.arange(BLOCKS))  # only the first row is the sequence's
    for place in range(known.greedy_prompt + 63):
        tokens, positions = np.zeros(11, np.int32), np.zeros(11, np.int32)
        tokens[0], positions[0] = sequence[place], place
        pages, new = step(params, spec, pages, tokens, positions, tables, "by_page", True)
        if place >= known.greedy_prompt - 1:
            sequence.append(int(np.asarray(new)[0].argmax()))
    np.testing.assert_array_equal(sequence[known.greedy_prompt :], known.greedy)
