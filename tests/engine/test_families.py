"""The engine samples every family as its model says, the learner agrees, and no padding row of a vocabulary is ever drawn."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.config.schema import BatchSection, RunConfig, SamplingSection
from slipstream.core.clock import ManualClock
from slipstream.core.records import SampleRequest, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision
from slipstream.train.learner import Learner
from tests.engine.small import drain, request
from tests.engine.test_learner_agreement import sequence
from tests.goldens.read import FAMILIES, golden
from tests.models.families import golden_model

FAST = ("llama", "qwen3_moe", "gemma2", "gemma3")  # the others by the slow tests; the decoder's own are fast for all
KNOWN = 40  # of 96 rows of the vocabulary, where a test pads it


def spec_of(family: str, known: int | None = None) -> ModelSpec:
    return replace(golden_model(family)[0], known_tokens=known)


def weights_of(family: str) -> WeightVersion:
    return WeightVersion(lineage=0, version=0, params=golden_model(family)[1])


def sampler(spec: ModelSpec, family: str, precision: Precision = "f32") -> Engine:
    made = Engine(spec, id="test", clock=ManualClock(), slots=4, max_tokens=80, tokens_per_dispatch=4, precision=precision)
    made.load(weights_of(family))
    return made


def asked(family: str, new: int = 24, temperature: float = 1.0) -> list[SampleRequest]:
    known = golden(family)
    prompts = [known.tokens[:20], known.tokens_b, known.tokens_c, known.tokens_b]
    return [request(f"r{index}", prompt % KNOWN, new=new, temperature=temperature, stop_ids=()) for index, prompt in enumerate(prompts)]


def scores(spec: ModelSpec, family: str, requests: list[SampleRequest], found: dict, temperature: float) -> list[np.ndarray]:
    """The learner's log-probs of what was sampled."""
    config = RunConfig(sampling=SamplingSection(temperature=temperature), batch=BatchSection(row_tokens=48, rows_per_microbatch=2))
    learner = Learner(config, spec, golden_model(family)[1])
    sequences = [sequence(one, found[one.key[0]]) for one in requests]
    scored = learner.score(sequences, weights_of(family))
    return [logprobs[one.loss_mask] for logprobs, one in zip(scored, sequences, strict=True)]


@pytest.mark.parametrize("family", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FAMILIES])
def test_greedy_samples_are_those_of_transformers(family: str) -> None:
    known = golden(family)
    prompt = known.tokens[: known.greedy_prompt]
    requests = [request("known", prompt, new=64, temperature=0.0, stop_ids=()), request("other", known.tokens_b, new=20, stop_ids=())]
    found = drain(sampler(spec_of(family), family), requests)
    np.testing.assert_array_equal(found["known"].completion_ids, known.greedy)


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all rows", "padded"])
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "qwen3_moe", "qwen2_window"])
def test_the_learner_scores_what_the_engine_stored(family: str, known: int | None) -> None:
    """Soft caps, windows, two rotary tables, experts and masked rows mean the same on both sides."""
    spec, requests = spec_of(family, known), asked(family)
    found = drain(sampler(spec, family), requests)
    for logprobs, one in zip(scores(spec, family, requests, found, 1.0), requests, strict=True):
        np.testing.assert_allclose(logprobs, found[one.key[0]].logprobs, atol=5e-5, rtol=0)


def test_a_padding_row_is_never_drawn() -> None:
    """At temperature 50 every row is about equally likely, so an unmasked one would be drawn more than half of the time."""
    spec, requests = spec_of("qwen2", KNOWN), asked("qwen2", new=50, temperature=50.0)
    drawn = np.concatenate([sample.completion_ids for sample in drain(sampler(spec, "qwen2"), requests).values()])
    assert len(drawn) == 200
    assert drawn.max() < KNOWN
    assert len(set(drawn.tolist())) > 30


@pytest.mark.parametrize(("precision", "largest"), [("bf16", 0.2), ("int8", 0.25), ("fp8", 0.4)])
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_lower_precision_is_another_class_near_the_same_policy(family: str, precision: Precision, largest: float) -> None:
    """Its log-probs differ from the learner's, on average by at most `largest` (unrelated weights: above 1.5), and it says its class."""
    engine, requests = sampler(spec_of(family), family, precision), asked(family)
    assert engine.sampler_class == f"cpu/{precision}"
    found = drain(engine, requests)
    apart = [
        np.abs(logprobs - found[one.key[0]].logprobs)
        for logprobs, one in zip(scores(spec_of(family), family, requests, found, 1.0), requests, strict=True)
    ]
    assert 1e-4 < np.concatenate(apart).mean() < largest
