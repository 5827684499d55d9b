"""The value head: its values and the whole gradient of its loss from the definition, what it learns, and that nothing of it is lost."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.config.schema import LoraSection, ModelSection, ObjectiveSection, RunConfig
from slipstream.core.records import TrainingSequence
from slipstream.loop.gae import Gae, valued
from slipstream.models.lora import Adapted, base_of
from slipstream.models.parameters import Params
from slipstream.train import learner as learner_module
from slipstream.train.columns import Columns
from slipstream.train.learner import Learner
from slipstream.train.objectives.value import value_loss
from slipstream.train.packing import Microbatch
from slipstream.train.statistics import value_statistics
from slipstream.train.update import TokenStatistics
from slipstream.train.value_head import Valued, ValueHead
from tests.models.llama_oracle import file_tensors, oracle_logits
from tests.train.oracle import value_term
from tests.train.small import SPEC, assert_bit_equal, batch, config, learner, params, sequence

RAW = Gae(whiten=False)
OBJECTIVE = {"advantage": "gae", "value_rate": 10.0, "value_coefficient": 0.5, "value_clip": 0.2}  # one, so that tests share programs


def settings(minibatches: int = 1, lora: bool = False, **more: object) -> RunConfig:
    given = config(minibatches=minibatches)
    model = ModelSection(lora=LoraSection(rank=2, targets=("q", "down"))) if lora else given.model
    return given.model_copy(update={"model": model, "objective": ObjectiveSection.model_validate(OBJECTIVE | more)})


def taught(running: Learner, sequences: list[TrainingSequence], rewards: np.ndarray, gae: Gae = RAW) -> list[TrainingSequence]:
    """The sequences as the learner's own samples, with its values and their advantages."""
    scored = running.score(sequences, running.weights())
    own = [replace(one, behaviour_logprobs=np.where(one.loss_mask, near, 0)) for one, near in zip(sequences, scored, strict=True)]
    return valued(own, rewards, running.values(own), gae)


def oracle_values(policy: Params, head: tuple[np.ndarray, float], one: TrainingSequence) -> np.ndarray:
    """Of the states in which tokens 1, 2, ... are chosen, in float64: the head stands in for the output matrix."""
    tensors = file_tensors(policy, SPEC) | {"lm_head.weight": head[0][None]}
    return oracle_logits(tensors, replace(SPEC, tied=False), one.token_ids[:-1])[:, 0] + head[1]


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_the_loss_of_one_value_and_its_slope(clip: float) -> None:
    """Around the target and the value before, on both sides of either bound."""
    axes = np.meshgrid([-0.53, -0.1, 0.02, 0.17, 0.61], [-0.44, 0.0, 0.13, 0.37], [-0.31, 0.05, 0.29])
    now, target, before = (np.float32(axis.ravel()) for axis in axes)
    found, slopes = jax.value_and_grad(lambda array: value_loss(array, target, before, clip).sum())(now)
    expected = [value_term(float(value), float(to), float(old), clip) for value, to, old in zip(now, target, before, strict=True)]
    assert float(found) == pytest.approx(sum(term.loss for term in expected), rel=1e-5)
    np.testing.assert_allclose(slopes, [term.slope for term in expected], atol=1e-6)
    assert {term.clipped for term in expected} == ({True, False} if clip else {False})


TAUGHT = [
    replace(
        one,
        advantages=np.zeros_like(one.advantages),  # so that the policy's own loss is flat
        returns=np.random.default_rng(number).normal(size=len(one.token_ids)).astype(np.float32),
        values=np.random.default_rng(number + 9).normal(size=len(one.token_ids)).astype(np.float32),
    )
    for number, one in enumerate(batch(6, 3))
]


def head(seed: int) -> ValueHead:
    drawn = np.random.default_rng(seed).normal(size=SPEC.d_model)
    return ValueHead(weight=jnp.asarray(drawn / 4, jnp.float32), bias=jnp.float32(0.3))


def slow_loss(policy: Params, weight: np.ndarray, bias: float, sequences: list[TrainingSequence]) -> tuple[float, set[bool]]:
    """Mean value loss of all trained tokens by the float64 oracle, and whether the clip acted: on some, on others."""
    total, tokens, clipped = 0.0, 0, set()
    for one in sequences:
        found = oracle_values(policy, (weight, bias), one)
        assert one.returns is not None
        assert one.values is not None
        for index in np.flatnonzero(one.loss_mask):
            term = value_term(found[index - 1], float(one.returns[index]), float(one.values[index]), OBJECTIVE["value_clip"])
            total, tokens, clipped = total + term.loss, tokens + 1, clipped | {term.clipped}
    return total / tokens, clipped


def test_values_loss_and_gradient_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient in every parameter at once: along a random direction, against the float64 oracle's difference quotient."""
    running = learner(settings())
    at, to = Valued(part=params(), head=head(1)), Valued(part=params(7), head=head(2))
    running._head = at.head
    for one, found in zip(TAUGHT, running.values(TAUGHT), strict=True):
        np.testing.assert_allclose(found[1:], oracle_values(params(), (np.float64(at.head.weight), 0.3), one), atol=1e-5)
    seen, real = [], learner_module.apply_gradient

    def spy(optimizer, learned, state, gradient, *rest):
        seen.append(jax.tree.map(np.float64, gradient))
        return real(optimizer, learned, state, gradient, *rest)

    monkeypatch.setattr(learner_module, "apply_gradient", spy)
    metrics = running.step(TAUGHT)
    expected, clipped = slow_loss(params(), np.float64(at.head.weight), 0.3, TAUGHT)
    assert clipped == {True, False}
    assert metrics["value_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["loss"] == pytest.approx(0.5 * expected, rel=1e-5)

    def moved(much: float) -> float:
        policy = jax.tree.map(lambda leaf, move: np.float64(leaf) + much * np.float64(move), at.part, to.part)
        return slow_loss(policy, np.float64(at.head.weight) + much * np.float64(to.head.weight), 0.3 + much * 0.3, TAUGHT)[0]

    slope = sum(float(np.sum(leaf * np.float64(move))) for leaf, move in zip(jax.tree.leaves(seen[0]), jax.tree.leaves(to), strict=True))
    assert abs(slope) > 0.01
    assert slope == pytest.approx(0.5 * (moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-3)


def puzzle() -> tuple[list[TrainingSequence], np.ndarray]:
    """Which tokens a sequence is made of says what it earns: 0, 0.5, 1 or 1.5."""
    rng = np.random.default_rng(11)
    drawn = [sequence(rng, 2, 6, 1.0) for _ in range(8)]
    sequences = [replace(one, token_ids=(one.token_ids % 4 + 4 * (index % 4)).astype(np.int32)) for index, one in enumerate(drawn)]
    return sequences, np.array([(index % 4) / 2 for index in range(8)])


def test_a_head_that_knows_nothing_changes_nothing_and_learns_to_foretell() -> None:
    """At first values are 0, advantages the rewards, the policy's step that of a learner without a head; later the values are right."""
    running, plain = learner(settings()), learner(config())
    sequences, rewards = puzzle()
    first = taught(running, sequences, rewards)
    assert not any(one.any() for one in running.values(sequences))
    assert all(set(one.advantages[one.loss_mask].tolist()) == {reward} for one, reward in zip(first, rewards, strict=True))
    metrics, expected = running.step(first), plain.step(first)
    assert metrics["value_loss"] == pytest.approx(np.square(rewards).mean() / 2, rel=1e-5)
    assert metrics["loss"] == pytest.approx(expected["loss"] + 0.5 * metrics["value_loss"], rel=1e-5)
    assert metrics["value_explained_variance"] == 0.0
    assert "value_loss" not in expected
    assert isinstance(running.weights().params, Params)  # samplers never see the head
    for ours, theirs in zip(jax.tree.leaves(running.weights().params), jax.tree.leaves(plain.weights().params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)  # of steps of 3e-3 an entry
    history = [metrics, *(running.step(taught(running, sequences, rewards, Gae())) for _ in range(20))]
    assert np.mean([one["value_explained_variance"] for one in history[-5:]]) > 0.6
    assert history[-1]["value_loss"] < 0.15 * history[0]["value_loss"]


def test_equal_samples_without_advantage_still_teach_the_head() -> None:
    """Whitened they say nothing to the policy; the head learns what they are worth."""
    running = learner(settings())
    sequences, _ = puzzle()
    sames = [running.step(taught(running, sequences, np.ones(8), Gae())) for _ in range(3)]
    assert sames[0]["loss"] == pytest.approx(0.5 * sames[0]["value_loss"], rel=1e-5)
    assert [one["skipped_updates"] for one in sames] == [0.0] * 3
    assert sames[2]["value_loss"] < sames[0]["value_loss"]
    assert np.isnan(sames[0]["value_explained_variance"])  # returns without any variance


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["all parameters", "adapters"])
def test_it_goes_on_bit_for_bit(tmp_path: Path, lora: bool) -> None:
    made = settings(lora=lora)
    running, other = learner(made), Learner(made, SPEC, params(9))
    sequences, rewards = puzzle()
    running.step(taught(running, sequences, rewards))
    running.save(tmp_path)
    other.restore(tmp_path)
    policy = running.weights().params
    assert isinstance(policy, Adapted) == lora
    assert jax.tree.all(jax.tree.map(np.array_equal, base_of(policy), params())) == lora
    assert any(one.any() for one in running.values(sequences))
    for ours, theirs in zip(running.values(sequences), other.values(sequences), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = taught(running, sequences, rewards)
    np.testing.assert_equal(other.step(again), running.step(again))
    assert_bit_equal(other.weights().params, running.weights().params)
    assert_bit_equal(other.values(sequences), running.values(sequences))


def test_minibatches_are_held_near_the_values_at_the_steps_start(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Microbatch, Columns]] = []

    def instead(learned, spec, layout, loss, gradient, microbatch, columns, temperature, *, numerics):
        seen.append((microbatch, columns))
        zeros = np.zeros(microbatch.segment_ids.shape, np.float32)
        found = dict.fromkeys(("logprobs", "entropy", "loss", "clipped", "masked", "value_loss"), zeros)
        return gradient, TokenStatistics(**found, expert_load=np.zeros((1, 0)))

    monkeypatch.setattr(learner_module, "accumulate", instead)
    running = learner(settings(2, name="ppo", value_clip=0.2, value_coefficient=0.4))
    sequences, rewards = puzzle()
    rng = np.random.default_rng(0)
    given = valued(sequences, rewards, [rng.normal(size=len(one.token_ids)) for one in sequences], RAW)
    running.step(given)
    assert {(columns.value.coefficient, columns.value.clip) for _, columns in seen if columns.value} == {(0.4, 0.2)}
    for name in ("returns", "values"):
        taken = [
            np.asarray(columns.value.returns if name == "returns" else columns.value.before)[batch.loss_mask > 0]
            for batch, columns in seen
            if columns.value
        ]
        wanted = np.concatenate([getattr(one, name)[one.loss_mask] for one in given])
        assert sorted(np.concatenate(taken).tolist()) == sorted(wanted.tolist())


def test_without_a_head_or_its_lessons_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no value head"):
        learner().values(batch(1))
    with pytest.raises(ValueError, match="no value head"):
        Learner(settings(), SPEC, params()).values(batch(1))
    with pytest.raises(ValueError, match="values and returns"):
        learner(settings()).step(batch(1))


def test_explained_variance_by_hand() -> None:
    """Returns 1, 3, 5 (variance 8/3), errors 0, 1, 0 (variance 2/9); what is not trained on does not count."""
    values, returns = np.array([9, 1, 9, 2, 5], np.float32), np.array([0, 1, 0, 3, 5], np.float32)
    mask = np.array([False, True, False, True, True])
    one = replace(sequence(np.random.default_rng(0), 1, 4, 1.0), loss_mask=mask, values=values, returns=returns)
    assert value_statistics([one, *batch(1, 1)])["value_explained_variance"] == pytest.approx(1 - (2 / 9) / (8 / 3))
    assert np.isnan(value_statistics(batch(1, 2))["value_explained_variance"])
