"""Tokens come from softmax(logits / T) of the definition, and the log-prob stored is the drawn token's under it.

`inspect` says what is wrong with a set of samples. It is shown to be silent on the engine and loud on faults that other
systems shipped: planted one at a time, each must be seen.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.records import Sample
from slipstream.engine import programs, sampling
from slipstream.models.logprobs import VocabularyRule, log_distribution
from slipstream.models.numerics import Numerics
from slipstream.models.spec import ModelSpec
from tests.engine.small import SPEC, drain, engine, params, request
from tests.models.llama_oracle import file_tensors, log_softmax, oracle_logits

SHALLOW = replace(SPEC, layers=1)  # compiles faster; a context of its own makes each faulty program another one
PROMPT = [3, 7, 1, 12]
SLOTS, DRAWS = 64, 2048
CHI2_16_ONE_IN_TEN_THOUSAND = 46.9  # 16 degrees of freedom: 17 tokens


def sampled(spec: ModelSpec, temperature: float, draws: int = DRAWS) -> list[Sample]:
    """Samples of two tokens after PROMPT."""
    requests = [request(f"d{index}", PROMPT, new=2, temperature=temperature, stop_ids=()) for index in range(draws)]
    found = drain(engine(spec, slots=SLOTS, per_dispatch=2, max_tokens=8), requests)
    return [found[one.key[0]] for one in requests]


def inspect(samples: list[Sample], spec: ModelSpec, temperature: float) -> set[str]:
    """What does not agree: the stored log-probs ("stored"), the first tokens drawn ("drawn")."""
    tensors = file_tensors(params(0, spec), spec)
    firsts = np.array([sample.completion_ids[0] for sample in samples])
    logits = {token: oracle_logits(tensors, spec, [*PROMPT, token])[-2:] for token in np.unique(firsts)}
    expected = np.array(
        [log_softmax(logits[sample.completion_ids[0]], temperature)[np.arange(2), sample.completion_ids] for sample in samples]
    )
    wrong = set()
    if np.abs(np.array([sample.logprobs for sample in samples]) - expected).max() > 1e-4:
        wrong.add("stored")
    if chi_square(firsts, np.exp(log_softmax(logits[firsts[0]][0], temperature))) > CHI2_16_ONE_IN_TEN_THOUSAND:
        wrong.add("drawn")
    return wrong


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    expected = len(tokens) * probabilities
    return float((np.square(np.bincount(tokens, minlength=len(probabilities)) - expected) / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    assert inspect(sampled(SHALLOW, temperature), SHALLOW, temperature) == set()


def test_second_tokens_are_independent_of_the_first_draws_noise() -> None:
    """Given one first token, second tokens follow their own distribution: noise is not used twice."""
    samples = sampled(SHALLOW, 2.0)
    firsts = [int(sample.completion_ids[0]) for sample in samples]
    common = max(set(firsts), key=firsts.count)
    seconds = np.array([sample.completion_ids[1] for sample in samples if sample.completion_ids[0] == common])
    logits = oracle_logits(file_tensors(params(0, SHALLOW), SHALLOW), SHALLOW, [*PROMPT, common])[-1]
    assert len(seconds) > 150
    assert chi_square(seconds, np.exp(log_softmax(logits, 2.0))) < CHI2_16_ONE_IN_TEN_THOUSAND


def top_one_stored(log_probs: jax.Array, token_ids: jax.Array) -> jax.Array:
    return log_probs.max(axis=-1)


def temperature_ignored(logits: jax.Array, temperature: jax.Array, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    return log_distribution(logits, jnp.ones_like(temperature), rule, numerics)


def temperature_twice(logits: jax.Array, temperature: jax.Array, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    return log_distribution(logits, temperature * temperature, rule, numerics)


def log_probs_divided(logits: jax.Array, temperature: jax.Array, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    return log_distribution(logits, 1.0, rule, numerics) / temperature


def one_position_late(params, spec, pages, token_ids, positions, *rest, **options):
    late = positions + 1 if len(token_ids) == SLOTS else positions  # decoding, not prefill
    return paged_hidden_states(params, spec, pages, token_ids, late, *rest, **options)


paged_hidden_states = programs.paged_hidden_states
FAULTS = {
    "top-1 stored": (sampling, "select", top_one_stored, {"stored"}),
    "temperature ignored": (sampling, "log_distribution", temperature_ignored, {"stored", "drawn"}),
    "temperature applied twice": (sampling, "log_distribution", temperature_twice, {"stored", "drawn"}),
    "log-probs divided by T": (sampling, "log_distribution", log_probs_divided, {"stored"}),
    "position off by one": (programs, "paged_hidden_states", one_position_late, {"stored"}),
}


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=() if fault == "top-1 stored" else pytest.mark.slow) for fault in FAULTS])
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, replacement, seen = FAULTS[fault]
    monkeypatch.setattr(module, name, replacement)
    spec = replace(SHALLOW, context=1000 + list(FAULTS).index(fault))
    assert inspect(sampled(spec, 2.0), spec, 2.0) >= seen


def test_greedy_is_the_argmax_at_every_position() -> None:
    """And its log-prob is that of temperature 1."""
    requests = [request(f"g{index}", [index + 1, 2, 3], new=20, temperature=0.0, stop_ids=()) for index in range(6)]
    found, tensors = drain(engine(), requests), file_tensors(params(0), SPEC)
    for one in requests:
        sample = found[one.key[0]]
        logits = oracle_logits(tensors, SPEC, [*one.prompt_ids, *sample.completion_ids[:-1]])[2:]
        assert (np.diff(np.sort(logits, axis=1)[:, -2:]) > 1e-4).all()  # no near ties, so the argmax is beyond rounding
        np.testing.assert_array_equal(sample.completion_ids, logits.argmax(axis=1))
        np.testing.assert_allclose(sample.logprobs, log_softmax(logits).max(axis=1), atol=1e-4, rtol=0)
