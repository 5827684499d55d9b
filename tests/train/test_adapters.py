"""Learning with adapters: the base stays, samplers get what was learned, exact bits hold, and a resumed learner goes on."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from slipstream.config.schema import LoraSection, ModelSection, RunConfig
from slipstream.core.clock import ManualClock
from slipstream.core.records import WeightVersion
from slipstream.engine.engine import Engine
from slipstream.models.lora import Adapted, base_of, whole
from slipstream.train.learner import Learner
from tests.engine.small import drain, request
from tests.engine.test_learner_agreement import sequence
from tests.train.small import SPEC, assert_bit_equal, batch, config, params

SEQUENCES = batch(3)


def settings(**changed: object) -> RunConfig:
    given = config(learning_rate=0.02)
    lora = LoraSection(rank=2, alpha=8.0, targets=("q", "v", "down"))
    return given.model_copy(update={"model": ModelSection(source=given.model.source, lora=lora)} | changed)


def learner(run: RunConfig) -> Learner:
    made = Learner(run, SPEC, params())
    made.begin_reinforcement()
    return made


def test_adapters_that_changed_nothing_yet_are_the_base() -> None:
    made, plain = learner(settings()), Learner(config(), SPEC, params())
    plain.begin_reinforcement()
    for ours, theirs in zip(made.score(SEQUENCES, made.weights()), plain.score(SEQUENCES, plain.weights()), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_only_adapters_move_and_the_loss_falls() -> None:
    made = learner(settings())
    before = made.weights().params
    demonstrations = [replace(one, advantages=np.where(one.loss_mask, np.float32(1), np.float32(0))) for one in SEQUENCES]
    scores = []
    for _ in range(6):
        found = made.score(demonstrations, made.weights())
        scores.append(np.mean([logs[one.loss_mask].mean() for logs, one in zip(found, demonstrations, strict=True)]))
        made.step(
            [replace(one, behaviour_logprobs=np.where(one.loss_mask, logs, 0)) for logs, one in zip(found, demonstrations, strict=True)]
        )
    after = made.weights().params
    assert isinstance(after, Adapted)
    assert_bit_equal(base_of(after), base_of(before))
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(after.adapters))
    assert scores[-1] > scores[0] + 0.1


@pytest.mark.parametrize("exact", [False, True])
def test_the_engine_samples_from_what_was_learned(exact: bool) -> None:
    made = learner(settings())
    made.step(SEQUENCES)
    run = settings()
    if exact:
        numerics = run.model.model_copy(update={"numerics": "exact"})
        sampling = run.sampling.model_copy(update={"page_tokens": 8})
        run = run.model_copy(update={"model": numerics, "sampling": sampling})
    scorer, weights = Learner(run, SPEC, params()), made.weights()
    engine = Engine(SPEC, id="e", clock=ManualClock(), slots=2, max_tokens=24, tokens_per_dispatch=2, page_tokens=8, exact=exact)
    engine.load(weights)
    asked = {f"r{index}": request(f"r{index}", [1, 2, 3 + index], new=8) for index in range(3)}
    for name, sample in drain(engine, asked.values()).items():
        one = sequence(asked[name], sample)
        (logprobs,) = scorer.score([one], weights)
        if exact:
            np.testing.assert_array_equal(logprobs[one.loss_mask], sample.logprobs)
        else:
            np.testing.assert_allclose(logprobs[one.loss_mask], sample.logprobs, atol=2e-5)


def test_a_resumed_learner_goes_on_bit_for_bit(tmp_path: Path) -> None:
    made = learner(settings())
    made.step(SEQUENCES)
    made.save(tmp_path)
    made.step(SEQUENCES)
    again = Learner(settings(), SPEC, params(seed=9))
    again.restore(tmp_path)
    again.step(SEQUENCES)
    assert_bit_equal(again.weights().params, made.weights().params)


def test_the_reference_is_the_base(tmp_path: Path) -> None:
    run = settings()
    made = learner(run.model_copy(update={"objective": run.objective.model_copy(update={"kl_coefficient": 0.1})}))
    made.step([replace(one, reference_logprobs=logs) for one, logs in zip(SEQUENCES, made.reference_logprobs(SEQUENCES), strict=True)])
    base = WeightVersion(lineage=0, version=0, params=base_of(made.weights().params))
    for ours, theirs in zip(made.reference_logprobs(SEQUENCES), made.score(SEQUENCES, base), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    made.save(tmp_path)
    assert not (tmp_path / "reference.safetensors").exists()


def test_merged_weights_score_as_base_and_adapters_do() -> None:
    made = learner(settings())
    made.step(SEQUENCES)
    merged = WeightVersion(lineage=0, version=1, params=whole(made.weights().params))
    for ours, theirs in zip(made.score(SEQUENCES, made.weights()), made.score(SEQUENCES, merged), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
