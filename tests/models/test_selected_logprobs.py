"""Log-probs of chosen tokens: value, gradient and entropy, whole and in chunks, at any temperature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models import logprobs
from slipstream.models.logprobs import VocabularyRule, log_distribution, select, selected_logprobs
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


RULES = {
    "plain": VocabularyRule(),
    "soft cap": VocabularyRule(softcap=1.5),
    "padded": VocabularyRule(known=V - 2),
    "both": VocabularyRule(known=V - 2, softcap=1.5),
}
KNOWN_IDS = jnp.minimum(IDS, V - 3)  # tokens of the padded vocabularies too


def plain_outputs(hidden: jax.Array, output: jax.Array, temperature: float, rule: VocabularyRule) -> tuple[jax.Array, ...]:
    """Log-prob, entropy and log-sum-exp by plain differentiable jax over the known rows only."""
    logits = (hidden @ output)[:, : rule.known]
    logits = rule.softcap * jnp.tanh(logits / rule.softcap) if rule.softcap else logits
    log_probs = jax.nn.log_softmax(logits / temperature)
    total = jax.scipy.special.logsumexp(logits / temperature, axis=1)
    return log_probs[jnp.arange(N), KNOWN_IDS], -(jnp.exp(log_probs) * log_probs).sum(axis=1), total


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_values(chunking: int, temperature: float, rule: VocabularyRule) -> None:
    found = selected_logprobs(HIDDEN, OUTPUT, KNOWN_IDS, jnp.float32(temperature), rule)
    logits = np.float64(HIDDEN) @ np.float64(OUTPUT)
    logits = (rule.softcap * np.tanh(logits / rule.softcap) if rule.softcap else logits)[:, : rule.known]
    expected = log_softmax(logits, temperature)
    np.testing.assert_allclose(found.logprob, expected[np.arange(N), KNOWN_IDS], atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.entropy, -(np.exp(expected) * expected).sum(axis=1), atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.logsumexp, (logits / temperature - expected)[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("output_of", range(3), ids=["logprob", "entropy", "logsumexp"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_gradients_are_those_of_the_plain_computation(chunking: int, output_of: int, rule: VocabularyRule) -> None:
    def ours(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return jnp.sum(WEIGHT * selected_logprobs(hidden, output, KNOWN_IDS, jnp.float32(0.7), rule)[output_of])

    def plain(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return jnp.sum(WEIGHT * plain_outputs(hidden, output, 0.7, rule)[output_of])

    for found, expected in zip(jax.grad(ours, (0, 1))(HIDDEN, OUTPUT), jax.grad(plain, (0, 1))(HIDDEN, OUTPUT), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


def test_an_output_matrix_that_lies_turned_gives_the_same(chunking: int) -> None:
    """Its own gradient lies as it does."""

    def loss(hidden: jax.Array, output: jax.Array, turned: bool) -> jax.Array:
        return sum(jnp.sum(WEIGHT * part) for part in selected_logprobs(hidden, output, IDS, jnp.float32(0.7), turned=turned))

    (upright, (dhidden, doutput)), (turned, (dhidden_turned, doutput_turned)) = (
        jax.value_and_grad(loss, (0, 1))(HIDDEN, output, lies_turned) for output, lies_turned in ((OUTPUT, False), (OUTPUT.T, True))
    )
    np.testing.assert_allclose(turned, upright, rtol=1e-6)
    np.testing.assert_allclose(dhidden_turned, dhidden, atol=1e-5, rtol=0)
    np.testing.assert_allclose(doutput_turned, doutput.T, atol=1e-5, rtol=0)


def test_the_temperature_carries_no_gradient() -> None:
    def total(temperature: jax.Array) -> jax.Array:
        return sum(part.sum() for part in selected_logprobs(HIDDEN, OUTPUT, IDS, temperature))

    np.testing.assert_array_equal(jax.grad(total)(jnp.float32(1.5)), 0.0)


def test_bfloat16_states_give_float32_gradients_of_float32_weights() -> None:
    """The products are in bfloat16; the gradient of the master weights is summed in float32 and close to the full one."""

    def loss(hidden: jax.Array, output: jax.Array) -> jax.Array:
        return jnp.sum(WEIGHT * selected_logprobs(hidden, output, IDS, jnp.float32(1.0)).logprob)

    dhidden, doutput = jax.grad(loss, (0, 1))(HIDDEN.astype(jnp.bfloat16), OUTPUT)
    assert (dhidden.dtype, doutput.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(doutput, jax.grad(loss, 1)(HIDDEN, OUTPUT), atol=0.05, rtol=0)


def test_a_padding_row_has_probability_zero() -> None:
    log_probs = log_distribution(jnp.full((2, V), 3.0).at[:, -1].set(1e9), 1.0, VocabularyRule(known=V - 1))
    assert np.exp(np.asarray(log_probs))[:, -1].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(log_probs[:, :-1], -np.log(V - 1), atol=1e-6)


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
    found, entropy, _ = selected_logprobs(HIDDEN, OUTPUT * jnp.float32(scale), IDS, jnp.float32(1.0))
    assert np.isfinite(np.asarray(found)).all()
    assert (np.asarray(found) <= 0).all()
    assert (np.asarray(entropy) >= 0).all()
    assert (np.asarray(entropy) <= np.log(V) + 1e-5).all()
