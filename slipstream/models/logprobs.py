"""Log-probabilities of tokens: the distribution that sampler and learner share, and the learner's memory-bounded form.

Temperature, soft cap and the mask of vocabulary padding are inside it: the log-prob is of the distribution really drawn from.
Letters: n positions, d model width, v vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from slipstream.models.cpu import rows as by_kernels
from slipstream.models.cpu.packed import Packed
from slipstream.models.cpu.softmax import NEVER
from slipstream.models.layers import soft_cap
from slipstream.models.numerics import FAST, Numerics, no_gradient
from slipstream.models.row_classes import times
from slipstream.models.sharding import over_rows, present_mesh, row_shares
from slipstream.models.spec import ModelSpec

Arrays = TypeVar("Arrays", bound=tuple[jax.Array, ...])

MAX_LOGITS = 4_194_304  # floats of logits alive at once in `selected_logprobs`: 16 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyRule:
    """How logits become a distribution, apart from temperature. Hashable, so a static argument."""

    known: int | None = None  # ids from here on are padding rows, never sampled; None: all rows are tokens
    softcap: float | None = None  # logits are soft-capped at this


_How = tuple[VocabularyRule, bool, Numerics]  # the bool: turned


class TokenLogprobs(NamedTuple):
    """Of the distribution at each of n positions, float32 [n]."""

    logprob: jax.Array  # of the target token
    entropy: jax.Array  # true entropy, nats
    logsumexp: jax.Array  # of the logits / temperature


def vocabulary_rule(spec: ModelSpec) -> VocabularyRule:
    """The rule of a decoder."""
    return VocabularyRule(known=spec.known_tokens, softcap=spec.logit_softcap)


def log_distribution(
    logits: jax.Array, temperature: jax.Array | float, rule: VocabularyRule = VocabularyRule(), numerics: Numerics = FAST
) -> jax.Array:
    """log softmax(logits / temperature) over the last axis, in float32; `logits` are already soft-capped."""
    return _normalised(logits, temperature, rule, numerics)[0]


def select(log_probs: jax.Array, token_ids: jax.Array) -> jax.Array:
    """The entries of `token_ids` [...] in log_probs [..., v]."""
    return jnp.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]


def selected_logprobs(
    hidden: jax.Array,
    output: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    rule: VocabularyRule = VocabularyRule(),
    turned: bool = False,
    numerics: Numerics = FAST,
) -> TokenLogprobs:
    """Log-prob of each target, entropy and log-sum-exp: hidden [n, d], output [d, v], token_ids [n] -> three of [n].

    `turned`: the output matrix lies as [v, d].

    Works in chunks of positions, forward and backward, so [n, v] never exists; on a mesh each device takes its own positions. Products
    are in hidden's dtype, all else in float32. With p the distribution, H its entropy and T the temperature, the derivatives by logits
    are (onehot - p) / T, -p (log p + H) / T and p / T. The temperature carries no gradient.
    """
    found: Any = _selected(hidden, output, token_ids, temperature, (rule, turned, numerics))
    return TokenLogprobs(*found)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _selected(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array, how: _How) -> TokenLogprobs:
    return _forward(hidden, output, token_ids, temperature, how)


def _forward(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array, how: _How) -> TokenLogprobs:
    def of_rows(whole: tuple[jax.Array, jax.Array], rows: tuple[jax.Array, jax.Array]) -> tuple[tuple[()], TokenLogprobs]:
        return (), _forward_rows(rows[0], whole[0], rows[1], whole[1], how)

    return _own_rows(of_rows, hidden.shape[0])((output, temperature), (hidden, token_ids))[1]


def _forward_rows(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array, how: _How) -> TokenLogprobs:
    rule, turned, numerics = how
    matrix, turned = numerics.laid_out(output.astype(hidden.dtype), turned)

    def chunk(inputs: tuple[jax.Array, jax.Array]) -> TokenLogprobs:
        states, ids = inputs
        logits = _logits(states, matrix, (rule, turned, numerics))
        log_probs, total = _normalised(logits, temperature, rule, numerics)
        return TokenLogprobs(select(log_probs, ids), _entropy(log_probs), total[:, 0])

    positions, rows = hidden.shape[0], _rows_per_chunk(output.shape[0 if how[1] else 1])
    if positions <= rows:
        return chunk((hidden, token_ids))
    stacked = jax.lax.map(chunk, _chunked((hidden, token_ids), rows))
    return TokenLogprobs(*(part.reshape(-1)[:positions] for part in stacked))


def _forward_saving(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array, how: _How):
    return _forward(hidden, output, token_ids, temperature, how), (hidden, output, token_ids, temperature)


def _backward(how: _How, saved: tuple[jax.Array, ...], cotangents: TokenLogprobs):
    hidden, output, token_ids, temperature = saved

    def of_rows(whole: tuple[jax.Array, jax.Array], rows: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        return _backward_rows(how, *whole, rows)

    doutput, dhidden = _own_rows(of_rows, hidden.shape[0])((output, temperature), (hidden, token_ids, *cotangents))
    return dhidden, doutput.astype(output.dtype), no_gradient(token_ids), jnp.zeros_like(temperature)


def _backward_rows(how: _How, output: jax.Array, temperature: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """Gradients by the output matrix, float32, and by the hidden states."""
    rule, turned, _ = how
    hidden = inputs[0]
    size = output.shape[0 if turned else 1]
    matrix, vocabulary = output.astype(hidden.dtype), jnp.arange(size)

    def one(total: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        states, ids, of_logprob, of_entropy, of_total = (part if part.ndim > 1 else part[:, None] for part in inputs)
        logits = _logits(states, matrix, (rule, turned, FAST))
        log_probs, _ = _normalised(logits, temperature, rule, FAST)
        probs = jnp.exp(log_probs)
        entropy = _entropy(log_probs)[:, None]
        dlogits = (ids == vocabulary) * of_logprob + probs * (of_total - of_logprob - of_entropy * (log_probs + entropy))
        dlogits = dlogits / temperature
        if rule.softcap is not None:
            dlogits = dlogits * (1.0 - (logits / rule.softcap) ** 2)
        rounded = dlogits.astype(states.dtype)
        doutput = jnp.einsum("nd,nv->vd" if turned else "nd,nv->dv", states, rounded, preferred_element_type=jnp.float32)
        return total + doutput, times(rounded, matrix, not turned)

    start = jnp.zeros(output.shape, jnp.float32)
    rows = _rows_per_chunk(size)
    if hidden.shape[0] <= rows:
        doutput, dhidden = one(start, inputs)
    else:
        doutput, stacked = jax.lax.scan(one, start, _chunked(inputs, rows))
        dhidden = stacked.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return doutput, dhidden


_selected.defvjp(_forward_saving, _backward)


def _own_rows(function: Callable[[Any, Any], tuple[Any, Any]], positions: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """XLA would have every device loop over all chunks, and add up gradients of the whole matrix after each of them."""
    return function if positions % row_shares(present_mesh()) else over_rows(function)


def _logits(states: jax.Array, matrix: jax.Array | Packed, how: _How) -> jax.Array:
    rule, turned, numerics = how
    return soft_cap(numerics.product(states, matrix, turned).astype(jnp.float32), rule.softcap, numerics)


def _scaled(logits: jax.Array, temperature: jax.Array | float, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    scaled = numerics.seal(numerics.seal(logits).astype(jnp.float32) / temperature)
    return scaled if rule.known is None else jnp.where(jnp.arange(logits.shape[-1]) < rule.known, scaled, NEVER)


def _normalised(logits: jax.Array, temperature: jax.Array | float, rule: VocabularyRule, numerics: Numerics) -> tuple[jax.Array, jax.Array]:
    """Log-probs [n, v], and the log-sum-exp [n, 1] that was taken off. Without a gradient where `numerics` has kernels of ours."""
    if numerics.own and by_kernels.fits(logits):
        return by_kernels.log_softmax(logits, temperature, rule.known)
    scaled, seal = _scaled(logits, temperature, rule, numerics), numerics.seal
    peak = jnp.max(scaled, axis=-1, keepdims=True)
    shifted = seal(scaled - peak)
    total = numerics.log(numerics.total(numerics.exp(shifted)))
    return seal(shifted - total), peak + total


def _entropy(log_probs: jax.Array) -> jax.Array:
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def _rows_per_chunk(vocabulary: int) -> int:
    return max(1, MAX_LOGITS // vocabulary)


def _chunked(arrays: Arrays, rows: int) -> Arrays:
    """Each array [n, ...] padded with zeros to whole chunks [chunks, rows, ...]."""

    def split(array: jax.Array) -> jax.Array:
        padding = -array.shape[0] % rows
        return jnp.pad(array, ((0, padding), *((0, 0),) * (array.ndim - 1))).reshape(-1, rows, *array.shape[1:])

    return jax.tree.map(split, arrays)
