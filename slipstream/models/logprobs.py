"""Log-probabilities of tokens: the distribution that sampler and learner share, and the learner's memory-bounded form.

Temperature is inside it: the log-prob is of the distribution that was really drawn from.
Letters: n positions, d model width, v vocabulary.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Arrays = TypeVar("Arrays", bound=tuple[jax.Array, ...])

MAX_LOGITS = 4_194_304  # floats of logits alive at once in `selected_logprobs`: 16 MiB


def log_distribution(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """log softmax(logits / temperature) over the last axis, in float32."""
    scaled = logits.astype(jnp.float32) / temperature
    shifted = scaled - jnp.max(scaled, axis=-1, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))


def select(log_probs: jax.Array, token_ids: jax.Array) -> jax.Array:
    """The entries of `token_ids` [...] in log_probs [..., v]."""
    return jnp.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]


@jax.custom_vjp
def selected_logprobs(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each target token and entropy of its distribution: hidden [n, d], output [d, v], token_ids [n] -> two [n].

    Works in chunks of positions, forward and backward, so [n, v] never exists. The entropy and the temperature carry no
    gradient; d logprob / d logits = (onehot(target) - softmax) / temperature.
    """
    return _forward(hidden, output, token_ids, temperature)


def _forward(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    def chunk(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, ids = inputs
        log_probs = log_distribution(jnp.einsum("nd,dv->nv", states, output), temperature)
        return select(log_probs, ids), -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    return _in_chunks(chunk, (hidden, token_ids), output.shape[1])


def _forward_saving(hidden: jax.Array, output: jax.Array, token_ids: jax.Array, temperature: jax.Array):
    return _forward(hidden, output, token_ids, temperature), (hidden, output, token_ids, temperature)


def _backward(saved: tuple[jax.Array, ...], cotangents: tuple[jax.Array, jax.Array]):
    hidden, output, token_ids, temperature = saved
    vocabulary = jnp.arange(output.shape[1])

    def one(total: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, ids, cotangent = inputs
        probs = jnp.exp(log_distribution(jnp.einsum("nd,dv->nv", states, output), temperature))
        onehot = (ids[:, None] == vocabulary).astype(probs.dtype)
        dlogits = ((onehot - probs) * (cotangent / temperature)[:, None]).astype(states.dtype)
        return total + jnp.einsum("nd,nv->dv", states, dlogits), jnp.einsum("nv,dv->nd", dlogits, output)

    inputs = (hidden, token_ids, cotangents[0])
    start = jnp.zeros_like(output)
    rows = _rows_per_chunk(output.shape[1])
    if hidden.shape[0] <= rows:
        doutput, dhidden = one(start, inputs)
    else:
        doutput, stacked = jax.lax.scan(one, start, _chunked(inputs, rows))
        dhidden = stacked.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return dhidden, doutput, np.zeros(token_ids.shape, jax.dtypes.float0), jnp.zeros_like(temperature)


selected_logprobs.defvjp(_forward_saving, _backward)


def _rows_per_chunk(vocabulary: int) -> int:
    return max(1, MAX_LOGITS // vocabulary)


def _chunked(arrays: Arrays, rows: int) -> Arrays:
    """Each array [n, ...] padded with zeros to whole chunks [chunks, rows, ...]."""

    def split(array: jax.Array) -> jax.Array:
        padding = -array.shape[0] % rows
        return jnp.pad(array, ((0, padding), *((0, 0),) * (array.ndim - 1))).reshape(-1, rows, *array.shape[1:])

    return jax.tree.map(split, arrays)


def _in_chunks(chunk, inputs: tuple[jax.Array, ...], vocabulary: int) -> tuple[jax.Array, jax.Array]:
    positions, rows = inputs[0].shape[0], _rows_per_chunk(vocabulary)
    if positions <= rows:
        return chunk(inputs)
    logprobs, entropies = jax.lax.map(chunk, _chunked(inputs, rows))
    return logprobs.reshape(-1)[:positions], entropies.reshape(-1)[:positions]
