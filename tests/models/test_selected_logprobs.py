"""Log-probs of chosen tokens: value, gradient and entropy, whole and in chunks, at any temperature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models import logprobs
from slipstream.models.logprobs import log_distribution, select, selected_logprobs
from tests.models.llama_oracle import log_softmax

N, D, V = 11, 6, 9
RNG = np.random.default_rng(2)
HIDDEN = jnp.asarray(RNG.normal(size=(N, D)), jnp.float32)
OUTPUT = jnp.asarray(RNG.normal(size=(D, V)), jnp.float32)
IDS = jnp.asarray(RNG.integers(0, V, N), jnp.int32)
WEIGHT = jnp.asarray(RNG.normal(size=N), jnp.float32)

ROWS = {"whole": N, "exactly fitting": N + 100, "chunks with a rest": 4, "chunks of one": 1}


@pytest.fixture(params=ROWS.values(), ids=ROWS)
def chunking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(logprobs, "MAX_LOGITS", request.param * V)
    return request.param


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_values_and_entropy(chunking: int, temperature: float) -> None:
    found, entropy = selected_logprobs(HIDDEN, OUTPUT, IDS, jnp.float32(temperature))
    expected = log_softmax(np.float64(HIDDEN) @ np.float64(OUTPUT), temperature)
    np.testing.assert_allclose(found, expected[np.arange(N), IDS], atol=1e-5, rtol=0)
    np.testing.assert_allclose(entropy, -(np.exp(expected) * expected).sum(axis=1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_gradient_is_that_of_log_softmax(chunking: int, temperature: float) -> None:
    def ours(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return jnp.sum(WEIGHT * selected_logprobs(hidden, output, IDS, jnp.float32(temperature))[0])

    def plain(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return jnp.sum(WEIGHT * jax.nn.log_softmax(hidden @ output / temperature)[jnp.arange(N), IDS])

    for found, expected in zip(jax.grad(ours, (0, 1))(HIDDEN, OUTPUT), jax.grad(plain, (0, 1))(HIDDEN, OUTPUT), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_entropy_and_temperature_carry_no_gradient() -> None:
    def entropy(hidden: jax.Array, output: jax.Array, temperature: jax.Array) -> jax.Array:
        return selected_logprobs(hidden, output, IDS, temperature)[1].sum()

    for gradient in jax.grad(entropy, (0, 1, 2))(HIDDEN, OUTPUT, jnp.float32(1.5)):
        np.testing.assert_array_equal(gradient, 0.0)


def test_no_array_of_all_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, the largest array with a vocabulary axis holds MAX_LOGITS numbers."""
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 4 * V)

    def loss(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return selected_logprobs(hidden, output, IDS, jnp.float32(1.0))[0].sum()

    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(HIDDEN, OUTPUT))
    assert f"[4,{V}]" in text
    assert f"[{N},{V}]" not in text
    assert f"[12,{V}]" not in text


def test_the_sampler_and_the_learner_share_the_distribution() -> None:
    shared = select(log_distribution(jnp.einsum("nd,dv->nv", HIDDEN, OUTPUT), 0.7), IDS)
    np.testing.assert_array_equal(selected_logprobs(HIDDEN, OUTPUT, IDS, jnp.float32(0.7))[0], shared)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4, 1e30])
def test_extreme_logits_stay_finite(scale: float) -> None:
    found, entropy = selected_logprobs(HIDDEN, OUTPUT * jnp.float32(scale), IDS, jnp.float32(1.0))
    assert np.isfinite(np.asarray(found)).all()
    assert (np.asarray(found) <= 0).all()
    assert (np.asarray(entropy) >= 0).all()
    assert (np.asarray(entropy) <= np.log(V) + 1e-5).all()
