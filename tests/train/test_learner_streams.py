"""What a step is made of beside plain rollouts: static streams, steps without signal, the reference policy, masks over the batch."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slipstream.config.schema import CorrectionSection, ObjectiveSection, RunConfig, StreamSection
from slipstream.core.records import TrainingSequence
from slipstream.train import learner as learner_module
from slipstream.train.columns import Columns, sequence_weights
from slipstream.train.learner import Learner, Reference
from slipstream.train.packing import Microbatch
from slipstream.train.second_moment import second_moment_mask
from slipstream.train.shares import minibatches
from slipstream.train.update import TokenStatistics
from tests.train.small import SPEC, assert_bit_equal, batch, config, learner, params

SEQUENCES = batch(3)
SHOWN = [replace(one, stream="shown", advantages=np.zeros_like(one.advantages)) for one in batch(4, 6)]


def with_stream(settings: RunConfig, weight: float = 0.5) -> RunConfig:
    stream = StreamSection(name="shown", file="shown.jsonl", weight=weight, samples_per_step=6)
    return settings.model_copy(update={"streams": (stream,)})


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[optax.Params]:
    """The gradient of each optimizer step from here on."""
    seen, real = [], learner_module.apply_gradient

    def spy(optimizer, policy, state, gradient, *rest):
        seen.append(jax.tree.map(jnp.copy, gradient))
        return real(optimizer, policy, state, gradient, *rest)

    monkeypatch.setattr(learner_module, "apply_gradient", spy)
    return seen


def test_streams_add_up_each_by_its_own_denominator_and_weight(gradients: list[optax.Params]) -> None:
    both = learner(with_stream(config())).step([*SHOWN[:3], *SEQUENCES, *SHOWN[3:]])
    rollouts = learner(with_stream(config())).step(SEQUENCES)
    shown = learner(with_stream(config())).step(SHOWN)
    expected = jax.tree.map(jnp.add, gradients[1], gradients[2])
    difference = optax.tree.norm(jax.tree.map(jnp.subtract, gradients[0], expected)) / optax.tree.norm(expected)
    assert float(difference) < 2e-6
    assert both["loss_rl"] == pytest.approx(rollouts["loss"], rel=1e-5)
    assert both["loss_shown"] == pytest.approx(shown["loss_shown"], rel=1e-5)
    assert shown["loss"] == pytest.approx(0.5 * shown["loss_shown"])
    assert both["loss"] == pytest.approx(both["loss_rl"] + 0.5 * both["loss_shown"], rel=1e-6)
    assert both["tokens"] == rollouts["tokens"] + shown["tokens"]
    assert both["entropy"] == pytest.approx(rollouts["entropy"], rel=1e-5)  # of the rollouts alone
    assert "loss_rl" not in rollouts


def test_a_stream_alone_is_supervised_training() -> None:
    """Its loss is that of a warm-start step on the same rows, whatever the sampling temperature, and it falls."""
    running = learner(with_stream(config("sft", temperature=2.0), weight=1.0))
    losses = [running.step(SHOWN)["loss"] for _ in range(3)]
    assert losses[0] == pytest.approx(Learner(config(), SPEC, params()).warm_step(SHOWN), rel=1e-5)
    assert losses[0] > losses[1] > losses[2]
    assert running.version == 3


def test_a_sequence_of_no_known_stream_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'shown'.*streams are rl"):
        learner().step([*SEQUENCES, *SHOWN])


def test_every_minibatch_has_its_share_of_every_stream() -> None:
    first, second = minibatches([*SHOWN, *SEQUENCES], 2)
    assert [len(first["rl"]), len(first["shown"]), len(second["rl"]), len(second["shown"])] == [4, 3, 4, 3]
    assert [*first["rl"], *second["rl"]] == SEQUENCES


def test_sequence_weights_by_hand() -> None:
    """Trained tokens 2, 4 and none: the third counts nowhere."""
    masks = [[False, True, True], [True] * 4, [False, False]]
    sequences = [replace(SEQUENCES[0], loss_mask=np.array(mask)) for mask in masks]
    assert sequence_weights(sequences, "token", 10) == [1 / 6] * 3
    assert sequence_weights(sequences, "sequence", 10)[:2] == [1 / 4, 1 / 8]
    assert sequence_weights(sequences, "constant", 10)[:2] == [1 / 20] * 2


def silent(sequences: list[TrainingSequence]) -> list[TrainingSequence]:
    return [replace(one, advantages=np.zeros_like(one.advantages)) for one in sequences]


def test_a_step_without_signal_does_not_move_by_momentum() -> None:
    """Adam's moments of earlier steps would; the step is skipped, counted, and leaves no trace but the version."""
    running, other = learner(), learner()
    for one in (running, other):
        one.step(SEQUENCES)
    before = running.weights().params
    metrics = running.step(silent(SEQUENCES))
    assert (metrics["skipped_updates"], metrics["update_norm"], metrics["nonfinite_updates"]) == (1.0, 0.0, 0.0)
    assert_bit_equal(running.weights().params, before)
    assert running.version == 2
    after, expected = running.step(SEQUENCES), other.step(SEQUENCES)
    assert after["lr"] == expected["lr"]
    assert_bit_equal(running.weights().params, other.weights().params)


def test_a_computed_gradient_of_zero_does_not_move_either(gradients: list[optax.Params]) -> None:
    """Every token left out by its weight: known only once computed."""
    running = learner()
    running.step(SEQUENCES)
    before = running.weights().params
    absurd = [replace(one, behaviour_logprobs=np.where(one.loss_mask, -99, 0).astype(np.float32)) for one in SEQUENCES]
    metrics = running.step(absurd)
    assert len(gradients) == 2
    assert (metrics["skipped_updates"], metrics["mask_fraction"], metrics["clip_fraction"]) == (1.0, 1.0, 0.0)
    assert_bit_equal(running.weights().params, before)


def near_reference(running: Learner, sequences: list[TrainingSequence]) -> list[TrainingSequence]:
    scored = running.reference_logprobs(sequences)
    return [replace(one, reference_logprobs=near) for one, near in zip(sequences, scored, strict=True)]


def with_kl(coefficient: float) -> RunConfig:
    objective = ObjectiveSection(name="decoupled_ppo", kl_coefficient=coefficient, kl_estimator="k2")
    return config(learning_rate=0.02).model_copy(update={"objective": objective})


def test_the_reference_is_version_0_and_the_kl_pulls_back_to_it(tmp_path: Path) -> None:
    running = learner(with_kl(1.0))
    start = running.reference_logprobs(SEQUENCES)
    rollouts = near_reference(running, SEQUENCES)
    metrics = running.step(rollouts)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    away = running.step(rollouts)["kl"]
    pulled = [running.step(near_reference(running, silent(SEQUENCES)))["kl"] for _ in range(6)]
    assert away > 1e-3
    assert pulled[-1] < pulled[0] / 2  # samples without advantage are computed on here
    running.save(tmp_path)
    other = learner(with_kl(1.0), seed=1)
    other.restore(tmp_path)
    for one in (running, other):
        for found, expected in zip(one.reference_logprobs(SEQUENCES), start, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_given_reference_is_the_reference() -> None:
    made = Learner(with_kl(0.1), SPEC, params(), reference=Reference(spec=SPEC, params=params(1)))
    made.begin_reinforcement()
    expected = learner(seed=1)
    for found, wanted in zip(made.reference_logprobs(SEQUENCES), expected.score(SEQUENCES, expected.weights()), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_without_reference_log_probs_there_is_no_step() -> None:
    with pytest.raises(ValueError, match="reference_logprobs"):
        learner(with_kl(0.1)).step(SEQUENCES)
    with pytest.raises(ValueError, match="no reference policy"):
        learner().reference_logprobs(SEQUENCES)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Microbatch, Columns]]:
    """What each device call is given from here on; nothing is computed."""
    seen = []

    def instead(policy, spec, layout, loss, gradient, microbatch, columns, temperature, *, numerics):
        seen.append((microbatch, columns))
        zeros = np.zeros(microbatch.segment_ids.shape, np.float32)
        found = TokenStatistics(logprobs=zeros, entropy=zeros, loss=zeros, clipped=zeros, masked=zeros, expert_load=np.zeros((1, 0)))
        return gradient, found

    monkeypatch.setattr(learner_module, "accumulate", instead)
    return seen


def test_the_second_moment_mask_is_over_the_whole_step_and_the_classes_corrected(given: list[tuple[Microbatch, Columns]]) -> None:
    """Two minibatches, one mask; samples of other classes are neither counted nor left out."""
    marked = [replace(one, sampler_class="odd" if index % 2 else "even") for index, one in enumerate(SEQUENCES)]
    correction = CorrectionSection(second_moment=0.3, classes=("odd",))
    running = learner(config(minibatches=2).model_copy(update={"correction": correction}))
    scored = zip(running.score(SEQUENCES, running.weights()), marked, strict=True)
    gaps = [(near - one.behaviour_logprobs)[one.loss_mask] for near, one in scored if one.sampler_class == "odd"]
    kept = second_moment_mask(np.concatenate(gaps), 0.3)
    running.step(marked)
    of_odd = [(columns.weights > 0) & columns.corrected for _, columns in given]
    found = [gap for (batch, columns), odd in zip(given, of_odd, strict=True) for gap in batch.behaviour_logprobs[odd & columns.kept]]
    behaviours = np.concatenate([one.behaviour_logprobs[one.loss_mask] for one in marked if one.sampler_class == "odd"])
    assert 0 < len(found) < len(behaviours)
    assert sorted(found) == sorted(behaviours[kept])
    assert sum(int(odd.sum()) for odd in of_odd) == len(behaviours)


def test_the_interpolated_proximal_policy_is_told_the_time_and_not_scored(
    given: list[tuple[Microbatch, Columns]], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = learner(config(minibatches=2).model_copy(update={"objective": ObjectiveSection(proximal="interpolated")}))
    monkeypatch.setattr(learner_module, "score", None)
    running.step(SEQUENCES)
    running.step(SEQUENCES)
    assert sorted({tuple(columns.clock.tolist()) for _, columns in given}) == [(0.0, 0.0), (0.0, 0.5), (1.0, 1.0), (1.0, 1.5)]
    assert all(columns.proximal is None for _, columns in given)
