"""The learner's step: on-policy data looks on-policy, minibatches keep one proximal policy, a broken gradient moves nothing."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from slipstream.config.schema import ModelSection
from slipstream.core.records import TrainingSequence, WeightVersion
from slipstream.train import learner as learner_module
from slipstream.train.learner import Learner
from tests.models.families import golden_model
from tests.models.llama_oracle import file_tensors, log_softmax, oracle_logits
from tests.train.small import SPEC, assert_bit_equal, batch, config, learner, params

SEQUENCES = batch(3)


def on_policy(running: Learner, sequences: list[TrainingSequence]) -> list[TrainingSequence]:
    """The sequences with the learner's own log-probs as behaviour."""
    scored = running.score(sequences, running.weights())
    return [replace(one, behaviour_logprobs=np.where(one.loss_mask, found, 0)) for one, found in zip(sequences, scored, strict=True)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_score_is_the_definitions_log_prob(temperature: float) -> None:
    running = learner(config(temperature=temperature))
    for one, found in zip(SEQUENCES, running.score(SEQUENCES, running.weights()), strict=True):
        expected = log_softmax(oracle_logits(file_tensors(params(), SPEC), SPEC, one.token_ids[:-1]), temperature)
        np.testing.assert_allclose(found, [0, *expected[np.arange(len(found) - 1), one.token_ids[1:]]], atol=1e-4, rtol=0)


def test_scoring_is_under_the_weights_given() -> None:
    running, other = learner(), WeightVersion(lineage=0, version=5, params=params(1))
    expected = learner(seed=1)
    for found, wanted in zip(running.score(SEQUENCES, other), expected.score(SEQUENCES, expected.weights()), strict=True):
        np.testing.assert_array_equal(found, wanted)


CORRECTED = ["decoupled_ppo", "ppo", "reinforce_is"]


@pytest.mark.parametrize("name", CORRECTED)
def test_fresh_data_has_ratio_one_and_nothing_clipped(name: str) -> None:
    running = learner(config(name))
    metrics = running.step(on_policy(running, SEQUENCES))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_std"] < 1e-5
    assert metrics["ess"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["nonfinite_updates"] == 0.0
    assert running.version == 1


def test_all_corrected_objectives_have_one_gradient_on_fresh_data() -> None:
    norms = []
    for name in CORRECTED:
        running = learner(config(name))
        norms.append(running.step(on_policy(running, SEQUENCES))["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)


def test_published_weights_are_never_overwritten() -> None:
    running = learner()
    before = running.weights()
    kept = jax.tree.map(lambda leaf: np.array(leaf), before.params)
    running.step(SEQUENCES)
    running.step(SEQUENCES)
    assert_bit_equal(before.params, kept)
    assert before.version == 0
    assert running.weights().version == 2


def test_minibatches_share_the_proximal_policy_of_the_steps_start(monkeypatch: pytest.MonkeyPatch) -> None:
    running = learner(config(minibatches=2, learning_rate=0.05))
    start = running.weights()
    seen, real = [], learner_module.accumulate

    def spy(policy, spec, layout, loss, gradient, microbatch, columns, temperature, *, numerics):
        seen.append((policy, microbatch, columns.proximal, float(1 / columns.weights.max())))
        return real(policy, spec, layout, loss, gradient, microbatch, columns, temperature, numerics=numerics)

    monkeypatch.setattr(learner_module, "accumulate", spy)
    metrics = running.step(SEQUENCES)
    expected = np.concatenate([found[one.loss_mask] for one, found in zip(SEQUENCES, running.score(SEQUENCES, start), strict=True)])
    proximal = np.concatenate([np.asarray(near)[microbatch.loss_mask > 0] for _, microbatch, near, _ in seen])
    np.testing.assert_allclose(np.sort(proximal), np.sort(expected), rtol=1e-6)  # at other places in a row sums round otherwise
    assert len({id(policy) for policy, *_ in seen}) == 2  # the second minibatch sees other weights
    halves = [sum(float(one.loss_mask.sum()) for one in half) for half in (SEQUENCES[:4], SEQUENCES[4:])]
    assert sorted({denominator for *_, denominator in seen}) == pytest.approx(sorted(set(halves)))
    assert metrics["tokens"] == sum(halves)
    assert running.version == 1


def test_minibatches_are_as_many_optimizer_steps() -> None:
    """Objectives without a proximal policy: two minibatches are two steps on the halves."""
    whole, halves = learner(config("ppo", minibatches=2)), learner(config("ppo"))
    whole.step(SEQUENCES)
    halves.step(SEQUENCES[:4])
    halves.step(SEQUENCES[4:])
    for found, expected in zip(jax.tree.leaves(whole.weights().params), jax.tree.leaves(halves.weights().params), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted() -> None:
    running, untouched = learner(config("ppo")), learner(config("ppo"))
    running.step(SEQUENCES)
    untouched.step(SEQUENCES)
    before = running.weights().params
    bad = [replace(one, behaviour_logprobs=np.where(one.loss_mask, -1e4, 0).astype(np.float32)) for one in SEQUENCES]
    metrics = running.step(bad)
    assert metrics["nonfinite_updates"] == 1.0
    assert metrics["update_norm"] == 0.0
    assert not np.isfinite(metrics["grad_norm"])
    assert_bit_equal(running.weights().params, before)
    after, expected = running.step(SEQUENCES), untouched.step(SEQUENCES)
    assert_bit_equal(running.weights().params, untouched.weights().params)
    assert after["lr"] == expected["lr"]
    assert after["nonfinite_updates"] == 0.0


def test_a_broken_minibatch_shows_in_the_gradient_norm_wherever_it_stands() -> None:
    for broken in (slice(0, 4), slice(4, 8)):
        sequences = list(SEQUENCES)
        sequences[broken] = [replace(one, behaviour_logprobs=np.full(len(one.token_ids), -1e4, np.float32)) for one in sequences[broken]]
        metrics = learner(config("ppo", minibatches=2)).step(sequences)
        assert not np.isfinite(metrics["grad_norm"])
        assert metrics["nonfinite_updates"] == 1.0
        assert metrics["update_norm"] > 0.0


def test_a_batch_without_any_signal_is_a_step_of_zero_gradient() -> None:
    running = learner()
    silent = [replace(one, advantages=np.zeros_like(one.advantages)) for one in SEQUENCES]
    metrics = running.step(silent)
    assert (metrics["loss"], metrics["grad_norm"], metrics["update_norm"], metrics["padding_waste"]) == (0.0, 0.0, 0.0, 0.0)
    assert metrics["tokens"] == sum(int(one.loss_mask.sum()) for one in SEQUENCES)
    assert np.isnan(metrics["entropy"])
    assert_bit_equal(running.weights().params, params())
    assert running.version == 1


def test_scanned_layers_learn_the_same() -> None:
    unrolled, scanned = learner(), learner(config(learner_layers="scan"))
    assert scanned.step(SEQUENCES)["grad_norm"] == pytest.approx(unrolled.step(SEQUENCES)["grad_norm"], rel=1e-5)


def test_supervised_loss_is_the_cross_entropy_and_falls() -> None:
    """At temperature 1, whatever the sampling temperature."""
    settings = config(temperature=2.0)
    running = Learner(settings, SPEC, params())
    tensors, total, tokens = file_tensors(params(), SPEC), 0.0, 0
    for one in SEQUENCES:
        expected = log_softmax(oracle_logits(tensors, SPEC, one.token_ids[:-1]))
        for index in np.flatnonzero(one.loss_mask):
            total, tokens = total - expected[index - 1, one.token_ids[index]], tokens + 1
    losses = [running.warm_step(SEQUENCES) for _ in range(4)]
    assert losses[0] == pytest.approx(total / tokens, rel=1e-4)
    assert losses[0] > losses[1] > losses[2] > losses[3]
    assert running.version == -1
    running.begin_reinforcement()
    assert running.version == 0


def test_the_first_step_moves_by_the_first_learning_rate() -> None:
    """Adam's first update is the sign of the gradient times the rate."""
    running = learner(config(learning_rate=0.03, warmup_steps=2))
    metrics = running.step(SEQUENCES)
    assert metrics["lr"] == pytest.approx(0.01)
    moves = jax.tree.map(lambda new, old: float(np.abs(np.asarray(new) - np.asarray(old)).max()), running.weights().params, params())
    assert max(jax.tree.leaves(moves)) == pytest.approx(0.01, rel=1e-3)


def test_a_mixture_of_experts_tells_its_load_and_bfloat16_is_near_float32() -> None:
    """Eight experts, two a token: the busiest has between 1 (all used evenly) and 4 (always chosen) times the mean."""
    spec, weights = golden_model("qwen3_moe")
    found, scores = {}, {}
    for precision in ("f32", "bf16"):
        model = ModelSection.model_validate({"learner_precision": precision, "learner_layers": "scan"})
        made = Learner(config().model_copy(update={"model": model}), spec, weights)
        made.begin_reinforcement()
        scores[precision] = np.concatenate(made.score(SEQUENCES, made.weights()))
        found[precision] = made.step(SEQUENCES)
        assert 1 <= found[precision]["expert_load_max"] <= 4
        assert {leaf.dtype for leaf in jax.tree.leaves(made.weights().params)} == {np.dtype(np.float32)}
    assert 0 < np.abs(scores["bf16"] - scores["f32"]).mean() < 0.1
    assert found["bf16"]["grad_norm"] == pytest.approx(found["f32"]["grad_norm"], rel=0.2)
    assert found["bf16"]["grad_norm"] != found["f32"]["grad_norm"]
