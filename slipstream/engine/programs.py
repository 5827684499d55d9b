"""The engine's device programs: copy pages, prefill units of prompts, decode a few tokens in every row. Pure and jitted.

Shapes are fixed when an engine is made, and a row's result depends on that row alone; so company, row and arrival order change
no bit. Each program takes the pool of pages and gives it back; the last page is scratch, where unused rows write.

Letters: n rows, u units of x tokens, j pages of a table, v vocabulary, m copies.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from slipstream.engine.sampling import SamplingRows, sample
from slipstream.models.attention.paged import by_page, page_of, units_by_page
from slipstream.models.attention.rule import AttentionRule
from slipstream.models.decoder import Pages, logits, paged_hidden_states
from slipstream.models.logprobs import vocabulary_rule
from slipstream.models.lora import Policy, adapters_of, base_of
from slipstream.models.numerics import Numerics, Program
from slipstream.models.spec import ModelSpec

Number = int | jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Tokens to prefill: each unit is up to x consecutive tokens of one sequence."""

    token_ids: jax.Array  # int32 [u, x]
    positions: jax.Array  # int32 [u, x]
    places: jax.Array  # int32 [u, x], the page each token's keys and values go to; scratch where there is no token
    tables: jax.Array  # int32 [u, j], padded with scratch


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What each row decodes. An unused row is inactive; its other entries mean nothing."""

    token: jax.Array  # int32 [n], newest token, not yet processed
    position: jax.Array  # int32 [n], its position
    last_position: jax.Array  # int32 [n], a token drawn there is the request's last
    active: jax.Array  # bool [n]
    tables: jax.Array  # int32 [n, j], padded with scratch
    sampling: SamplingRows


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens of one dispatch; entries of steps that were not made mean nothing where `valid` is False."""

    token: jax.Array  # int32 [steps, n]
    logprob: jax.Array  # float32 [steps, n]
    raw_logprob: jax.Array  # float32 [steps, n]; see `sampling.NextToken`
    valid: jax.Array  # bool [steps, n], False where the row was not active


def _copy_pages(pages: Pages, sources: jax.Array, targets: jax.Array, *, numerics: Numerics) -> Pages:
    return jax.tree.map(lambda pool: pool.at[:, targets].set(pool[:, sources]), pages)


def _prefill(policy: Policy, spec: ModelSpec, pages: Pages, units: Units, *, numerics: Numerics) -> Pages:
    u, x = units.positions.shape

    def attention(q: jax.Array, keys: jax.Array, values: jax.Array, first: Number, window: Number, rule: AttentionRule) -> jax.Array:
        grouped = q.reshape(u, x, *q.shape[1:])
        mixed, _ = units_by_page(grouped, keys, values, units.tables + first, units.positions, window, rule, numerics)
        return mixed.reshape(q.shape)

    flat = (units.token_ids.reshape(-1), units.positions.reshape(-1), units.places.reshape(-1))
    return paged_hidden_states(base_of(policy), spec, pages, *flat, attention, adapters=adapters_of(policy), numerics=numerics).state


def _decode(policy: Policy, spec: ModelSpec, pages: Pages, rows: Rows, *, steps: int, numerics: Numerics) -> tuple[Pages, Drawn]:
    n = rows.token.shape[0]
    blank = Drawn(
        token=jnp.zeros((steps, n), jnp.int32),
        logprob=jnp.zeros((steps, n)),
        raw_logprob=jnp.zeros((steps, n)),
        valid=jnp.zeros((steps, n), bool),
    )

    def one_step(carry: tuple[jax.Array, Pages, Rows, Drawn]) -> tuple[jax.Array, Pages, Rows, Drawn]:
        step, pages, rows, drawn = carry
        pages, found = _next_logits(policy, spec, pages, rows, numerics)
        position = rows.position + 1
        new = sample(found, rows.sampling, position, vocabulary_rule(spec), numerics)
        ended = (new.token[:, None] == rows.sampling.stop_ids).any(axis=1) | (position >= rows.last_position)
        drawn = Drawn(
            token=drawn.token.at[step].set(new.token),
            logprob=drawn.logprob.at[step].set(new.logprob),
            raw_logprob=drawn.raw_logprob.at[step].set(new.raw_logprob),
            valid=drawn.valid.at[step].set(rows.active),
        )
        rows = replace(
            rows,
            token=jnp.where(rows.active, new.token, rows.token),
            position=jnp.where(rows.active, position, rows.position),
            active=rows.active & ~ended,
        )
        return step + 1, pages, rows, drawn

    def unfinished(carry: tuple[jax.Array, Pages, Rows, Drawn]) -> jax.Array:
        return (carry[0] < steps) & carry[2].active.any()

    _, pages, _, drawn = jax.lax.while_loop(unfinished, one_step, (jnp.int32(0), pages, rows, blank))
    return pages, drawn


def _next_logits(policy: Policy, spec: ModelSpec, pages: Pages, rows: Rows, numerics: Numerics) -> tuple[Pages, jax.Array]:
    """Process each active row's newest token; the logits [n, v] that follow it."""
    positions = jnp.where(rows.active, rows.position, 0)  # so that nobody walks the pages of a row that has ended
    places = jnp.where(rows.active, page_of(rows.tables, positions, pages.page_tokens), pages.scratch)

    def attention(q: jax.Array, keys: jax.Array, values: jax.Array, first: Number, window: Number, rule: AttentionRule) -> jax.Array:
        return by_page(q, keys, values, rows.tables + first, positions, window, rule, numerics)

    params, adapters = base_of(policy), adapters_of(policy)
    found = paged_hidden_states(params, spec, pages, rows.token, positions, places, attention, adapters=adapters, numerics=numerics)
    return found.state, logits(params, spec, found.hidden, numerics)


copy_pages = Program(_copy_pages, static=(), donate=("pages",))
"""Pages `sources` [m] copied to `targets` [m]; pairs of scratch do nothing."""

prefill = Program(_prefill, static=("spec",), donate=("pages",))
"""Keys and values of the units' tokens, written to their pages. Tokens of one call see those of earlier units, and of their own."""

decode = Program(_decode, static=("spec", "steps"), donate=("pages",))
"""Draw up to `steps` tokens in every active row, ending early when none is. A row stops at a stop id or its last position."""
