"""How a row's next token is drawn from its logits. Pure and jitted; called by the engine's programs, told by `rows.SlotTable`.

In this order: padding rows of the vocabulary are impossible; biases are added; stop ids are impossible while the sample is too
short; the temperature divides. Then min-p, top-k and top-p each see what the one before left, renormalised (vLLM's order).
Greedy takes the likeliest token before any truncation, which could not change it, and its log-prob is at temperature 1.
Equal log-probs rank by id, the lowest first. What no row asks for costs nothing, and no row sees its neighbours.

Letters: n rows, v vocabulary, b biases a row, s stop ids a row, m choices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from slipstream.engine.requests import BIASES, STOPS
from slipstream.models.cpu import rows as by_kernels
from slipstream.models.logprobs import VocabularyRule, log_distribution, select
from slipstream.models.numerics import FAST, Numerics

BLOCK = 256  # ids of a block; see `draw`
UNUSED = -1  # in `bias_ids` and `stop_ids`
LEAST_MASS = 1e-30  # of top-p: one token is always left
INFINITY = 0x7F800000  # bits of float32 infinity: the largest distance from the likeliest token


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """How each row draws. `plain_rows` are rows without any wish."""

    key: jax.Array  # uint32 [n, 2], the sample's random stream
    temperature: jax.Array  # float32 [n], 0 = greedy
    top_k: jax.Array  # int32 [n], 0 = all
    top_p: jax.Array  # float32 [n], 1 = all
    min_p: jax.Array  # float32 [n], 0 = all
    stop_ids: jax.Array  # int32 [n, s], UNUSED where there is none
    first_stop: jax.Array  # int32 [n], the first position where a stop id may be drawn
    bias_ids: jax.Array  # int32 [n, b], distinct in a row, UNUSED where there is none
    bias: jax.Array  # float32 [n, b], added to the logits of `bias_ids`


class NextToken(NamedTuple):
    """One token a row, [n] each."""

    token: jax.Array  # int32
    logprob: jax.Array  # float32, under the distribution drawn from
    raw_logprob: jax.Array  # float32, at the same temperature over all tokens, without biases


class Distribution(NamedTuple):
    """float32 [n, v]. Impossible tokens have log-probs of -inf or below -1e29; a greedy row is at temperature 1, never truncated."""

    logits: jax.Array  # after biases and early stop ids
    untruncated: jax.Array  # log-probs of these at the row's temperature
    log_probs: jax.Array  # after truncation: what is drawn from


def plain_rows(n: int) -> SamplingRows:
    """`n` rows at temperature 1 that neither bias, truncate nor stop."""
    return SamplingRows(
        key=jnp.zeros((n, 2), jnp.uint32),
        temperature=jnp.ones(n, jnp.float32),
        top_k=jnp.zeros(n, jnp.int32),
        top_p=jnp.ones(n, jnp.float32),
        min_p=jnp.zeros(n, jnp.float32),
        stop_ids=jnp.full((n, STOPS), UNUSED, jnp.int32),
        first_stop=jnp.zeros(n, jnp.int32),
        bias_ids=jnp.full((n, BIASES), UNUSED, jnp.int32),
        bias=jnp.zeros((n, BIASES), jnp.float32),
    )


def sample(logits: jax.Array, rows: SamplingRows, positions: jax.Array, rule: VocabularyRule, numerics: Numerics = FAST) -> NextToken:
    """Draw the tokens at `positions` [n] of the samples from logits [n, v], soft-capped where the model does so."""
    logits = logits.astype(jnp.float32)
    found = distribution(logits, rows, positions, rule, numerics)
    drawn = draw(found.log_probs, rows.key, positions, numerics)
    greedy = rows.temperature == 0
    token = jax.lax.cond(greedy.any(), lambda: jnp.where(greedy, _likeliest_token(found.logits, rule), drawn), lambda: drawn)

    def raw() -> jax.Array:
        return select(log_distribution(logits, _divisor(rows), rule, numerics), token)

    untouched = select(found.untruncated, token)
    raw_logprob = jax.lax.cond(_adjusts(rows, positions).any(), raw, lambda: untouched)
    return NextToken(token=token, logprob=select(found.log_probs, token), raw_logprob=raw_logprob)


def distribution(
    logits: jax.Array, rows: SamplingRows, positions: jax.Array, rule: VocabularyRule, numerics: Numerics = FAST
) -> Distribution:
    """What is drawn from at `positions` [n], given float32 logits [n, v]."""
    adjusts, truncates = _adjusts(rows, positions).any(), _truncates(rows).any()
    adjusted = jax.lax.cond(adjusts, lambda found: _adjusted(found, rows, positions), lambda found: found, logits)
    untruncated = log_distribution(adjusted, _divisor(rows), rule, numerics)
    log_probs = jax.lax.cond(truncates, lambda found: _truncated(found, rows, numerics), lambda found: found, untruncated)
    return Distribution(logits=adjusted, untruncated=untruncated, log_probs=log_probs)


def draw(log_probs: jax.Array, key: jax.Array, positions: jax.Array, numerics: Numerics = FAST) -> jax.Array:
    """Tokens int32 [n] by the inverse of the distribution function; key uint32 [n, 2], one stream a row.

    Every w-th id makes a block of `BLOCK`: the position's first uniform number picks a block, its second a token in it. So
    shares are right to 2^-24 of the whole for blocks, and to 2^-24 of its block for a token. What has no probability is never
    drawn, whatever rounding does.
    """
    n, v = log_probs.shape
    width = -(-v // BLOCK)
    padded = jnp.pad(log_probs, ((0, 0), (0, width * BLOCK - v)), constant_values=-jnp.inf)
    first, second = _uniforms(key, positions)
    block = _pick(_block_shares(padded, width, numerics), first)
    inside = jnp.exp(jnp.take_along_axis(padded.reshape(n, BLOCK, width), block[:, None, None], axis=2)[:, :, 0])
    return jnp.minimum(_pick(inside, second) * width + block, v - 1)


def _block_shares(log_probs: jax.Array, width: int, numerics: Numerics) -> jax.Array:
    if numerics.own:
        return by_kernels.block_shares(log_probs, width)
    probs = numerics.seal(jnp.exp(log_probs)).reshape(len(log_probs), BLOCK, width)
    return _total(probs.swapaxes(1, 2), numerics)


def _divisor(rows: SamplingRows) -> jax.Array:
    return jnp.where(rows.temperature == 0, 1.0, rows.temperature)[:, None]


def _adjusts(rows: SamplingRows, positions: jax.Array) -> jax.Array:
    return (rows.bias_ids != UNUSED).any(axis=1) | (positions < rows.first_stop)


def _truncates(rows: SamplingRows) -> jax.Array:
    return ((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)) & (rows.temperature > 0)


def _adjusted(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    n, v = logits.shape
    row = jnp.arange(n)[:, None]
    early = (positions < rows.first_stop)[:, None] & (rows.stop_ids != UNUSED)
    biased = logits.at[row, jnp.where(rows.bias_ids == UNUSED, v, rows.bias_ids)].add(rows.bias, mode="drop")
    return biased.at[row, jnp.where(early, rows.stop_ids, v)].set(-jnp.inf, mode="drop")


def _likeliest_token(logits: jax.Array, rule: VocabularyRule) -> jax.Array:
    """The lowest of the likeliest ids [n]; on CPU a third of argmax's time."""
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)
    known = logits if rule.known is None else jnp.where(ids < rule.known, logits, -jnp.inf)
    found = jnp.where(known == known.max(axis=1, keepdims=True), ids, logits.shape[1] - 1)
    return found.min(axis=1)


def _truncated(log_probs: jax.Array, rows: SamplingRows, numerics: Numerics) -> jax.Array:
    """`log_probs` after min-p, top-k and top-p; rows that ask for none of them keep their bits.

    Works without a sort, which takes 40 times as long on CPU: the bits of non-negative floats are ordered as the floats are, so
    the distance of the last token kept is found by halving an interval of 31-bit numbers.
    """
    v = log_probs.shape[1]
    below = jnp.abs(log_probs.max(axis=1, keepdims=True) - log_probs)  # abs: no negative zero
    kept = below <= -jnp.log(rows.min_p)[:, None]

    def likeliest(kept: jax.Array, weight: jax.Array, wanted: jax.Array) -> jax.Array:
        distance = jax.lax.bitcast_convert_type(jnp.where(kept, below, jnp.inf), jnp.int32)
        return kept & _smallest_set(distance, jnp.where(kept, weight, 0.0), wanted, numerics)

    def by_count(kept: jax.Array) -> jax.Array:
        return likeliest(kept, jnp.ones_like(below), jnp.where(rows.top_k > 0, rows.top_k, v).astype(jnp.float32))

    def by_mass(kept: jax.Array) -> jax.Array:
        weight = numerics.seal(jnp.exp(-below))
        mass = _total(jnp.where(kept, weight, 0.0), numerics)
        found = likeliest(kept, weight, jnp.maximum(rows.top_p, LEAST_MASS) * mass)
        return jnp.where(rows.top_p[:, None] < 1, found, kept)

    kept = jax.lax.cond((rows.top_k > 0).any(), by_count, lambda found: found, kept)
    kept = jax.lax.cond((rows.top_p < 1).any(), by_mass, lambda found: found, kept)
    left = jnp.where(kept, log_probs, -jnp.inf)
    return jnp.where(_truncates(rows)[:, None], log_distribution(left, 1.0, VocabularyRule(), numerics), log_probs)


def _smallest_set(distance: jax.Array, weight: jax.Array, wanted: jax.Array, numerics: Numerics) -> jax.Array:
    """The nearest tokens that weigh `wanted` [n] together, as bool [n, v]; equals by lowest id. distance int32, weight [n, v]."""

    def weighs_enough(edge: jax.Array) -> jax.Array:
        return _total(jnp.where(distance <= edge[:, None], weight, 0.0), numerics) >= wanted

    edge = _least(weighs_enough, jnp.zeros(wanted.shape, jnp.int32))[:, None]
    nearer, tied = distance < edge, distance == edge
    weight_of_tied = jnp.where(tied, weight, 0.0)
    before = _total(jnp.where(nearer, weight, 0.0), numerics)[:, None] + (jnp.cumsum(weight_of_tied, axis=1) - weight_of_tied)
    return nearer | tied & (before < wanted[:, None])


def _least(holds: Callable[[jax.Array], jax.Array], zero: jax.Array) -> jax.Array:
    """The smallest number up to INFINITY at which `holds`, for each row; `holds` is monotone, and taken as true at INFINITY."""

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        yes = holds(middle)
        return jnp.where(yes, low, middle + 1), jnp.where(yes, middle, high)

    return jax.lax.fori_loop(0, 31, halve, (zero, zero + INFINITY))[1]


def _uniforms(key: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two numbers in [0, 1) a row, multiples of 2^-24: a function of key and position alone."""

    def words(key: jax.Array, position: jax.Array) -> jax.Array:
        stream = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), position)
        return jax.random.bits(stream, (2,), jnp.uint32)

    found = (jax.vmap(words)(key, positions) >> 8).astype(jnp.float32) * 2.0**-24
    return found[:, 0], found[:, 1]


def _pick(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """An index [n] into weights [n, m], with its weight's share of `uniform`'s interval [0, 1); never one of weight 0."""
    reached = _running_sums(weights)
    possible = weights > 0
    hit = possible & (reached > uniform[:, None] * reached[:, -1:])
    last = weights.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    return jnp.where(hit.any(axis=1), jnp.argmax(hit, axis=1), last).astype(jnp.int32)


def _total(x: jax.Array, numerics: Numerics) -> jax.Array:
    """The sum over the last axis. Monotone: sums of more or larger non-negative numbers, in one order, are never smaller."""
    return numerics.total(x)[..., 0]


def _running_sums(x: jax.Array) -> jax.Array:
    """Sums up to and with each entry of the last axis (Hillis and Steele 1986): additions of whole arrays, so no shape changes bits."""
    step = 1
    while step < x.shape[-1]:
        x = x + jnp.pad(x, ((0, 0), (step, 0)))[:, : x.shape[-1]]
        step *= 2
    return x
