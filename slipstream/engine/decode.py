"""The engine's device programs: fill slots with prompts, and decode a few tokens in every slot. Pure and jitted.

A slot is a row of the key/value cache. Sampling of one request depends on its prompt, seed and the weights only: shapes are
fixed and draws are keyed by (sample seed, token position), so company, slot and arrival order change no bit.

Letters: n slots, p prompts, l prompt tokens, s cache tokens, g key/value heads, k head width, v vocabulary.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from slipstream.models.attention.dense import attend, attention_layout
from slipstream.models.attention.rule import attention_rule, within
from slipstream.models.decoder import At, hidden_states, logits
from slipstream.models.logprobs import VocabularyRule, log_distribution, select, vocabulary_rule
from slipstream.models.parameters import Params
from slipstream.models.spec import ModelSpec

Cache = tuple[tuple[jax.Array, jax.Array], ...]  # a layer: keys [n, g, k, s] and values [n, g, s, k], as attention reads them


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What each slot is doing. A free slot is inactive; its other entries mean nothing."""

    token: jax.Array  # int32 [n], newest token, not yet in the cache
    position: jax.Array  # int32 [n], its position
    last_position: jax.Array  # int32 [n], a token drawn there is the request's last
    active: jax.Array  # bool [n]
    key: jax.Array  # uint32 [n, 2], the sample's random stream
    temperature: jax.Array  # float32 [n], 0 = greedy


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens of one dispatch."""

    token: jax.Array  # int32 [steps, n]
    logprob: jax.Array  # float32 [steps, n]
    valid: jax.Array  # bool [steps, n], False where the slot was not active


def empty_cache(spec: ModelSpec, slots: int, tokens: int, dtype: jnp.dtype | type) -> Cache:
    """A zeroed cache."""
    keys, values = (slots, spec.kv_heads, spec.head_dim, tokens), (slots, spec.kv_heads, tokens, spec.head_dim)
    return tuple((jnp.zeros(keys, dtype), jnp.zeros(values, dtype)) for _ in range(spec.layers))


@partial(jax.jit, static_argnames=("spec",), donate_argnames=("cache",))
def prefill(params: Params, spec: ModelSpec, cache: Cache, token_ids: jax.Array, slots: jax.Array, sources: jax.Array) -> Cache:
    """Compute keys and values of prompts [p, l] once each and copy prompt `sources[i]` into slot `slots[i]` (both [n]).

    Unused entries of `slots` lie beyond the last slot and are dropped. Prompts are padded on the right; what is written beyond a
    prompt's end is overwritten by decoding before it can be seen.
    """
    length = token_ids.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), token_ids.shape)
    rule = attention_rule(spec)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, at: At, cache: Cache) -> tuple[jax.Array, Cache]:
        keys, values = cache[at.layer]
        k, v = attention_layout(k, v)
        causal = within(positions[:, :, None], positions[:, None, :], at.window)
        keys = keys.at[slots, :, :, :length].set(k[sources].astype(keys.dtype), mode="drop")
        values = values.at[slots, :, :length].set(v[sources].astype(values.dtype), mode="drop")
        return attend(q, k, v, causal, rule), _replaced(cache, at, keys, values)

    return hidden_states(params, spec, token_ids, positions, attention, cache, dtype=cache[0][0].dtype).state


@partial(jax.jit, static_argnames=("spec", "steps"), donate_argnames=("cache",))
def decode(params: Params, spec: ModelSpec, cache: Cache, rows: Rows, stop_ids: jax.Array, steps: int) -> tuple[Cache, Drawn]:
    """Draw up to `steps` tokens in every active slot. A slot stops at a stop id [any length] or its last position."""

    def one_step(carry: tuple[Cache, Rows], _: None) -> tuple[tuple[Cache, Rows], Drawn]:
        cache, rows = carry
        cache, found = _step_logits(params, spec, cache, rows)
        token, logprob = _draw(found, rows, vocabulary_rule(spec))
        position = rows.position + 1
        ended = (token[:, None] == stop_ids).any(axis=1) | (position >= rows.last_position)
        advanced = Rows(
            token=jnp.where(rows.active, token, rows.token),
            position=jnp.where(rows.active, position, rows.position),
            last_position=rows.last_position,
            active=rows.active & ~ended,
            key=rows.key,
            temperature=rows.temperature,
        )
        return (cache, advanced), Drawn(token=token, logprob=logprob, valid=rows.active)

    (cache, _), drawn = jax.lax.scan(one_step, (cache, rows), None, length=steps)
    return cache, drawn


def _step_logits(params: Params, spec: ModelSpec, cache: Cache, rows: Rows) -> tuple[Cache, jax.Array]:
    """Write each slot's newest token into the cache and return the logits [n, v] that follow it."""
    slot = jnp.arange(rows.token.shape[0])
    index = jnp.arange(cache[0][0].shape[3])
    rule = attention_rule(spec)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, at: At, cache: Cache) -> tuple[jax.Array, Cache]:
        keys, values = cache[at.layer]
        keys = keys.at[slot, :, :, rows.position].set(k[:, 0].astype(keys.dtype), unique_indices=True, mode="promise_in_bounds")
        values = values.at[slot, :, rows.position].set(v[:, 0].astype(values.dtype), unique_indices=True, mode="promise_in_bounds")
        visible = within(rows.position[:, None], index[None], at.window)[:, None]
        return attend(q, keys, values, visible, rule), _replaced(cache, at, keys, values)

    found = hidden_states(params, spec, rows.token[:, None], rows.position[:, None], attention, cache, dtype=cache[0][0].dtype)
    return found.state, logits(params, spec, found.hidden[:, 0])


def _replaced(cache: Cache, at: At, keys: jax.Array, values: jax.Array) -> Cache:
    return (*cache[: at.layer], (keys, values), *cache[at.layer + 1 :])


def _draw(logits: jax.Array, rows: Rows, rule: VocabularyRule) -> tuple[jax.Array, jax.Array]:
    """Tokens [n] by the Gumbel method and their log-probs under the distribution drawn from (greedy: at temperature 1)."""
    greedy = rows.temperature == 0.0
    log_probs = log_distribution(logits, jnp.where(greedy, 1.0, rows.temperature)[:, None], rule)

    def noise(key: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key), position), logits.shape[1:])

    gumbel = jnp.where(greedy[:, None], 0.0, jax.vmap(noise)(rows.key, rows.position))
    token = jnp.argmax(log_probs + gumbel, axis=-1).astype(jnp.int32)
    return token, select(log_probs, token)
