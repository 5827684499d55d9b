"""How much kept keys and values matter after a swap: what sequences would draw next, over those they have and over fresh ones.

Everything happens in pages of its own, with the programs that run anyway, so nothing that is sampled changes. Called by the
engine between two dispatches, where `kv_on_swap` is `auto`.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from slipstream.engine.plan import Chunk, Decoding, Table
from slipstream.engine.programs import copy_pages, decode, prefill
from slipstream.engine.requests import LARGEST_BIAS
from slipstream.engine.sampling import UNUSED, SamplingRows
from slipstream.engine.units import Shapes, copy_arguments, decode_rows, prefill_calls
from slipstream.models.decoder import Pages
from slipstream.models.lora import Policy
from slipstream.models.numerics import Numerics
from slipstream.models.spec import ModelSpec

PROBED = 4  # sequences measured after a swap; each costs a prefill of its tokens and a page table's length of memory


def divergence(
    params: Policy,
    spec: ModelSpec,
    pages: Pages,
    sequences: Sequence[Chunk],
    tables: Sequence[Table],
    sampling: SamplingRows,
    shapes: Shapes,
    *,
    steps: int,
    numerics: Numerics,
) -> tuple[Pages, float]:
    """The largest difference, in nats, of the log-probs of the tokens that `sequences` would draw next; and the pool back.

    Each of `sequences` has all its tokens, the newest last, and its pages; `sampling` is theirs, in their order; `tables` are pages to
    work in, as long as the longest sequence. Both log-probs are of these weights, at the row's temperature, of the token that the kept
    keys and values give.
    """
    own = [replace(one, table=table) for one, table in zip(sequences, tables, strict=True)]
    decoding = [_next_token(one) for one in own]
    copies = [pair for one, copy in zip(sequences, own, strict=True) for pair in zip(one.table, copy.table, strict=False)]
    for sources, targets in copy_arguments(copies, shapes):
        pages = copy_pages(pages, sources, targets, numerics=numerics)
    pages, kept = decode(params, spec, pages, decode_rows(decoding, sampling, shapes), steps=steps, numerics=numerics)
    for units in prefill_calls([replace(one, token_ids=one.token_ids[:-1]) for one in own], shapes):
        pages = prefill(params, spec, pages, units, numerics=numerics)
    forced = _forced(sampling, np.asarray(kept.token[0]))
    pages, fresh = decode(params, spec, pages, decode_rows(decoding, forced, shapes), steps=steps, numerics=numerics)
    apart = (np.asarray(kept.raw_logprob[0]) - np.asarray(fresh.raw_logprob[0]))[: len(own)]
    return pages, float(np.abs(apart).max())


def _next_token(one: Chunk) -> Decoding:
    position = len(one.token_ids) - 1
    return Decoding(key=one.key, row=one.row, token=one.token_ids[-1], position=position, steps_left=1, mixed=True, table=one.table)


def _forced(sampling: SamplingRows, tokens: np.ndarray) -> SamplingRows:
    """Every row draws the token given: no other has a chance. Raw log-probs are those without the bias."""
    ids, bias = np.full(sampling.bias_ids.shape, UNUSED, np.int32), np.zeros(sampling.bias.shape, np.float32)
    ids[:, 0], bias[:, 0] = tokens, LARGEST_BIAS
    return replace(sampling, bias_ids=jnp.asarray(ids), bias=jnp.asarray(bias))
