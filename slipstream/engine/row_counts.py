"""How many rows decode programs have. Few samples cost less in a program of few rows; each sample is the same in any. Called by the engine.

In exact numerics that is so by construction. In fast numerics it is tried on this device with these weights: the same rows, alone and
among others, must leave the same bits in tokens, log-probs, keys and values. Where they do not, all dispatches have all rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.engine.programs import Drawn, Rows, decode
from slipstream.engine.requests import BIASES
from slipstream.engine.sampling import UNUSED, SamplingRows, plain_rows
from slipstream.engine.units import Shapes
from slipstream.models.decoder import Pages
from slipstream.models.lora import Policy
from slipstream.models.numerics import SAMPLING
from slipstream.models.spec import ModelSpec

FEWEST = 8  # rows: fewer would cost hardly less
APART = 4  # each count is so many times the one before
LEAST_WIDTH = 256  # of a model in which rows cost more than another program takes to compile


def row_counts(slots: int, width: int) -> tuple[int, ...]:
    """Row counts of the programs of an engine, ascending: 8 and 32 for 32 slots; the slots alone where they are few or the model narrow."""
    found = [slots]
    while width >= LEAST_WIDTH and found[0] % APART == 0 and found[0] >= APART * FEWEST:
        found.insert(0, found[0] // APART)
    return tuple(found)


def sound_counts(
    params: Policy, spec: ModelSpec, pages: Pages, shapes: Shapes, steps: int, counts: Sequence[int]
) -> tuple[Pages, tuple[int, ...]]:
    """The pool back, and those of `counts` whose programs draw in fast numerics what that of the last one draws.

    Runs each program once, on pages that nobody uses: before anything is prefilled.
    """
    pages, expected = _tried(params, spec, pages, shapes, steps, shapes.rows)
    sound = []
    for count in counts[:-1]:
        pages, found = _tried(params, spec, pages, shapes, steps, count)
        if all(np.array_equal(one[:count], other[:count]) for one, other in zip(found, expected, strict=True)):
            sound.append(count)
    return pages, (*sound, counts[-1])


def _tried(params: Policy, spec: ModelSpec, pages: Pages, shapes: Shapes, steps: int, count: int) -> tuple[Pages, list[np.ndarray]]:
    """One dispatch from position 0 of as many rows as there are pages for, with all kinds of wishes; its bits by row."""
    tables = [[shapes.scratch] * shapes.table_pages for _ in range(count)]
    last = min(steps, shapes.table_pages * shapes.page_tokens - 1)
    spread = -(-last // shapes.page_tokens)
    for row, table in enumerate(tables):
        own = range(row * spread, (row + 1) * spread)
        if own.stop <= shapes.scratch:
            table[:spread] = own
    rows = Rows(
        token=jnp.arange(count, dtype=jnp.int32) % (spec.known_tokens or spec.vocab),
        position=jnp.zeros(count, jnp.int32),
        last_position=jnp.full(count, last, jnp.int32),
        active=jnp.array([table[0] != shapes.scratch for table in tables]),
        tables=jnp.array(tables, jnp.int32),
        sampling=_wishes(count),
    )
    pages, drawn = decode(params, spec, pages, rows, steps=steps, numerics=SAMPLING)
    used = [page for table in tables for page in table[:spread]]
    return pages, [*_by_row(drawn), *(_of_pages(pool, used, count) for pool in (pages.keys, pages.values))]


def _wishes(count: int) -> SamplingRows:
    """So that every branch is taken."""
    rows = jnp.arange(count)
    return replace(
        plain_rows(count),
        key=jnp.stack([rows, rows], axis=1).astype(jnp.uint32),
        temperature=jnp.where(rows % 5 == 0, 0.0, 0.7).astype(jnp.float32),
        top_k=jnp.where(rows % 5 == 1, 5, 0).astype(jnp.int32),
        top_p=jnp.where(rows % 5 == 2, 0.9, 1.0).astype(jnp.float32),
        min_p=jnp.where(rows % 5 == 3, 0.01, 0.0).astype(jnp.float32),
        bias_ids=jnp.full((count, BIASES), UNUSED, jnp.int32).at[:, 0].set(1),
        bias=jnp.full((count, BIASES), 0.5),
    )


def _by_row(drawn: Drawn) -> list[np.ndarray]:
    return [np.asarray(array).T.copy().view(np.int32) for array in (drawn.token, drawn.logprob, drawn.raw_logprob)]


def _of_pages(pool: jax.Array, used: Sequence[int], count: int) -> np.ndarray:
    """[count, ...] of a pool [L, p, ...]."""
    kept = np.asarray(pool[:, np.array(used)])
    return np.moveaxis(kept.view(f"u{kept.itemsize}"), 1, 0).reshape(count, -1)
