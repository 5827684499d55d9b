"""The self-test passes the engine, at every precision and in exact mode, and catches faults planted in its own parts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.config.schema import BatchSection, ModelSection, RunConfig
from slipstream.core.clock import ManualClock
from slipstream.core.records import SampleRequest, TrainingSequence
from slipstream.core.rng import stream_seed
from slipstream.engine import programs, sampling
from slipstream.engine.engine import Engine
from slipstream.loop.conformance import QUICK, THOROUGH, Finding, Verdict, check_sampler, failures
from slipstream.models.logprobs import VocabularyRule, log_distribution, select
from slipstream.models.numerics import Numerics
from slipstream.models.spec import ModelSpec
from slipstream.train.learner import Learner
from tests.engine.small import SPEC, params, weights

KNOWN = 15
SHALLOW = replace(SPEC, layers=1, known_tokens=KNOWN)
PROMPTS = [np.array(ids, np.int32) for ids in ([3, 7, 1, 12], [5, 5])]
ROWS = 96


def engine(spec: ModelSpec, **options: Any) -> Engine:
    made = Engine(spec, id="test", clock=ManualClock(), slots=ROWS, max_tokens=12, tokens_per_dispatch=4, **options)
    made.load(weights(0, spec))
    return made


@cache
def learner(numerics: Literal["fast", "exact"] = "fast") -> Learner:
    config = RunConfig(model=ModelSection(numerics=numerics), batch=BatchSection(row_tokens=64, rows_per_microbatch=4))
    return Learner(config, SHALLOW, params(3, SHALLOW))


def score(sequences: Sequence[TrainingSequence], temperature: float) -> list[np.ndarray]:
    return learner().score(sequences, weights(0, SHALLOW), temperature)


check = partial(check_sampler, score=score, prompts=PROMPTS, known_tokens=KNOWN, seed=0)


def failed(found: list[Finding]) -> set[str]:
    return {one.check.split(" at temperature")[0] for one in found if one.verdict is Verdict.FAILED}


SLOW = pytest.mark.slow


@pytest.mark.parametrize("options", [{}, {"page_tokens": 4, "pages": 120}], ids=["plenty", "preempted"])
def test_the_engine_passes(options: dict[str, Any]) -> None:
    found = check(engine(SHALLOW, **options), temperatures=(0.5, 1.0, 2.0))
    assert {one.verdict for one in found} == {Verdict.PASSED}, found
    assert failures(check(engine(SHALLOW, **options), effort=QUICK)) == ""


@pytest.mark.slow
def test_exact_arithmetic_is_the_learner_s_to_the_bit() -> None:
    def exactly(sequences: Sequence[TrainingSequence], temperature: float) -> list[np.ndarray]:
        return learner("exact").score(sequences, weights(0, SHALLOW), temperature)

    found = check(engine(SHALLOW, exact=True), score=exactly, temperatures=(0.5, 0.7, 1.0), tolerance=0.0)
    assert {one.verdict for one in found} == {Verdict.PASSED}, found
    assert failed(check(engine(SHALLOW), score=exactly, tolerance=0.0)) == {"log-probs"}


@pytest.mark.parametrize(
    ("precision", "tolerance"), [pytest.param("bf16", 0.05, marks=SLOW), ("int8", 0.1), pytest.param("fp8", 0.2, marks=SLOW)]
)
def test_samplers_of_fewer_bits_pass_within_their_tolerance(precision: str, tolerance: float) -> None:
    assert failures(check(engine(SHALLOW, precision=precision), tolerance=tolerance)) == ""


# ---- faults in the engine's own parts


def most_likely(log_probs: jax.Array, *_: Any) -> jax.Array:
    return log_probs.argmax(axis=1).astype(jnp.int32)


def one_seed(key: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    return uniforms(jnp.zeros_like(key), positions)


def one_position(key: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    return uniforms(key, jnp.zeros_like(positions))


def top_one(log_probs: jax.Array, token_ids: jax.Array) -> jax.Array:
    return log_probs.max(axis=-1)


def twice(logits: jax.Array, temperature: jax.Array, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    return log_distribution(logits, temperature * temperature, rule, numerics)


def divided(logits: jax.Array, temperature: jax.Array, rule: VocabularyRule, numerics: Numerics) -> jax.Array:
    return log_distribution(logits, 1.0, rule, numerics) / temperature


def one_position_late(params, spec, pages, token_ids, positions, *rest, **options):
    late = positions + 1 if len(token_ids) == ROWS else positions  # decoding, not prefill
    return paged_hidden_states(params, spec, pages, token_ids, late, *rest, **options)


def stored_at_temperature_one(logits: jax.Array, rows: Any, positions: jax.Array, rule: VocabularyRule, numerics: Numerics) -> Any:
    drawn = sample(logits, rows, positions, rule, numerics)
    return drawn._replace(logprob=select(log_distribution(logits, 1.0, rule, numerics), drawn.token))


def no_padding(spec: ModelSpec) -> VocabularyRule:
    return VocabularyRule()


uniforms, sample, paged_hidden_states = sampling._uniforms, sampling.sample, programs.paged_hidden_states
FAULTS = {
    "greedy in disguise": (sampling, "draw", most_likely, {"first tokens"}),
    "seed ignored": (sampling, "_uniforms", one_seed, {"first tokens", "seeds differ"}),
    "same noise at every position": (sampling, "_uniforms", one_position, {"second tokens"}),
    "top-1 stored": (sampling, "select", top_one, {"log-probs", "probabilities"}),
    "temperature applied twice": (sampling, "log_distribution", twice, {"log-probs"}),
    "position off by one": (programs, "paged_hidden_states", one_position_late, {"log-probs"}),
    "padding rows drawn": (programs, "vocabulary_rule", no_padding, {"padding rows"}),
    "log-probs divided by T": (sampling, "log_distribution", divided, {"log-probs"}),
    "stored at temperature 1": (programs, "sample", stored_at_temperature_one, {"log-probs", "first tokens"}),
}


FAST = ("greedy in disguise", "seed ignored", "top-1 stored", "temperature applied twice", "position off by one")


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=() if fault in FAST else pytest.mark.slow) for fault in FAULTS])
def test_faults_in_its_parts_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, replacement, seen = FAULTS[fault]
    monkeypatch.setattr(module, name, replacement)
    spec = replace(SHALLOW, context=2000 + list(FAULTS).index(fault))  # a context of its own makes it another program
    assert failed(check(engine(spec))) >= seen
    if fault != "same noise at every position":
        assert failed(check(engine(spec), effort=QUICK))


# ---- faults in how it is asked


class TopKMinusOneIsOne(Engine):
    def submit(self, request: SampleRequest) -> None:
        super().submit(replace(request, top_k=1))


class Unseeded(Engine):
    asked = 0

    def submit(self, request: SampleRequest) -> None:
        self.asked += 1
        super().submit(replace(request, seed=stream_seed(0, "unseeded", self.asked)))


class SeedOf32Bits(Engine):
    def submit(self, request: SampleRequest) -> None:
        super().submit(replace(request, seed=request.seed & 0xFFFFFFFF))


@pytest.mark.parametrize(
    ("kind", "seen"), [(TopKMinusOneIsOne, {"log-probs"}), (Unseeded, {"seeds repeat"}), (SeedOf32Bits, {"seeds differ"})]
)
@pytest.mark.parametrize("effort", [QUICK, THOROUGH], ids=["quick", "thorough"])
def test_faults_in_how_it_is_asked_are_caught(kind: type[Engine], seen: set[str], effort: Any) -> None:
    made = kind(SHALLOW, id="test", clock=ManualClock(), slots=ROWS, max_tokens=12, tokens_per_dispatch=4)
    made.load(weights(0, SHALLOW))
    assert failed(check(made, effort=effort)) >= seen
