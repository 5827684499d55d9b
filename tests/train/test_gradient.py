"""Value and gradient of a step do not depend on how its sequences were packed, and are those of a plain loop over sequences.

Float32: other shapes add in another order, so equal within 2e-6 of the gradient's norm (measured: below 5e-7). A lost token,
a wrong denominator or a leak between segments is thousands of times larger.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slipstream.config.schema import ObjectiveSection
from slipstream.core.records import TrainingSequence
from slipstream.models.parameters import Params
from slipstream.train.columns import Columns
from slipstream.train.objectives import objective
from slipstream.train.packing import pack
from slipstream.train.shapes import one_shape
from slipstream.train.update import Layout, accumulate, zero_gradient
from tests.models.llama_oracle import file_tensors, log_softmax, oracle_logits
from tests.train.small import SPEC, batch, learner, params, sequence

LOSS = objective(ObjectiveSection())
TOLERANCE = 2e-6
SHAPES = {"as it is": (24, 2), "narrow rows, low": (16, 1), "wide rows, high": (40, 4)}


def step_gradient(
    sequences: Sequence[TrainingSequence], row_tokens: int = 24, rows: int = 2, denominator: int | None = None
) -> tuple[float, Params]:
    """Loss and gradient of one optimizer step."""
    tokens = denominator or int(sum(one.loss_mask.sum() for one in sequences))
    gradient, loss = zero_gradient(params()), 0.0
    for microbatch in pack(sequences, one_shape(row_tokens, rows))[0]:
        columns = Columns(weights=microbatch.loss_mask / np.float32(tokens))
        gradient, statistics = accumulate(
            params(), SPEC, Layout(scan=False, remat=False), LOSS, gradient, microbatch, columns, jnp.float32(0.8)
        )
        loss += float(np.asarray(statistics.loss).sum(dtype=np.float64))
    return loss, gradient


def distance(found: Params, expected: Params) -> float:
    """Norm of the difference over the norm."""
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, found, expected)) / optax.tree.norm(expected))


SEQUENCES = batch(1, 9)


@pytest.fixture(scope="module")
def plain() -> tuple[float, Params]:
    return step_gradient(SEQUENCES)


@pytest.mark.parametrize(("row_tokens", "rows"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("order", [None, 3])
def test_packing_changes_nothing(plain: tuple[float, Params], row_tokens: int, rows: int, order: int | None) -> None:
    indices = np.arange(len(SEQUENCES)) if order is None else np.random.default_rng(order).permutation(len(SEQUENCES))
    loss, gradient = step_gradient([SEQUENCES[index] for index in indices], row_tokens, rows)
    assert loss == pytest.approx(plain[0], rel=1e-6, abs=1e-7)
    assert distance(gradient, plain[1]) < TOLERANCE


def test_the_loss_is_the_definitions_mean_over_all_trained_tokens(plain: tuple[float, Params]) -> None:
    """By the float64 oracle, one sequence at a time; proximal = current, so u = 1 and the loss is -w A."""
    tensors, total, tokens = file_tensors(params(), SPEC), 0.0, 0
    for one in SEQUENCES:
        logprobs = log_softmax(oracle_logits(tensors, SPEC, one.token_ids[:-1]), 0.8)
        for index in np.flatnonzero(one.loss_mask):
            weight = np.exp(logprobs[index - 1, one.token_ids[index]] - one.behaviour_logprobs[index])
            total += -weight * one.advantages[index] if weight <= 5.0 else 0.0
            tokens += 1
    assert plain[0] == pytest.approx(total / tokens, rel=1e-4, abs=1e-5)


def test_the_gradient_is_the_sum_of_those_of_single_sequences(plain: tuple[float, Params]) -> None:
    tokens = int(sum(one.loss_mask.sum() for one in SEQUENCES))
    parts = [step_gradient([one], denominator=tokens)[1] for one in SEQUENCES]
    assert distance(jax.tree.map(lambda *leaves: sum(leaves), *parts), plain[1]) < TOLERANCE


def test_gradient_goes_uphill_in_advantage() -> None:
    """A step against the gradient makes good tokens likelier and bad ones rarer."""
    rng = np.random.default_rng(0)
    sequences = [sequence(rng, 2, 6, 1.0), sequence(rng, 2, 6, -1.0)]
    running = learner()
    before = running.score(sequences, running.weights())
    for _ in range(3):
        running.step(sequences)
    gains = [float((a - b).sum()) for a, b in zip(running.score(sequences, running.weights()), before, strict=True)]
    assert gains[0] > 0.1
    assert gains[1] < -0.1


def test_sequences_without_advantage_count_in_the_denominator_and_nowhere_else() -> None:
    rng = np.random.default_rng(8)
    silent = [sequence(rng, 2, 7, 0.0) for _ in range(4)]
    tokens = int(sum(one.loss_mask.sum() for one in [*SEQUENCES, *silent]))
    mixed = [one for pair in zip(SEQUENCES, silent, strict=False) for one in pair] + SEQUENCES[len(silent) :]
    _, without = step_gradient(SEQUENCES, denominator=tokens)
    _, with_them = step_gradient(mixed)
    assert distance(with_them, without) < TOLERANCE
    # and the learner, which leaves them out, reports the norm of that gradient (temperature 1 there)
    running, expected = learner(), learner()
    metrics, alone = running.step(mixed), expected.step(SEQUENCES)
    assert metrics["tokens"] == tokens
    assert metrics["grad_norm"] * tokens == pytest.approx(alone["grad_norm"] * alone["tokens"], rel=1e-5)
    assert metrics["loss"] * tokens == pytest.approx(alone["loss"] * alone["tokens"], rel=1e-5)
    assert metrics["entropy"] == pytest.approx(alone["entropy"], rel=1e-6)


def test_masked_tokens_change_nothing() -> None:
    """Whatever stands in advantages and behaviour log-probs of tokens the model did not choose."""
    rng = np.random.default_rng(2)
    noisy = [
        replace(
            one,
            advantages=np.where(one.loss_mask, one.advantages, 9.0).astype(np.float32),
            behaviour_logprobs=np.where(one.loss_mask, one.behaviour_logprobs, -rng.random(len(one.token_ids))).astype(np.float32),
        )
        for one in SEQUENCES
    ]
    np.testing.assert_equal(step_gradient(noisy)[0], step_gradient(SEQUENCES)[0])
    jax.tree.map(np.testing.assert_array_equal, step_gradient(noisy)[1], step_gradient(SEQUENCES)[1])


def test_a_shared_prompt_changes_neither_value_nor_gradient() -> None:
    """Three groups of four, packed with their prompts computed once and, in an order that parts them, each alone."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, SPEC.vocab, 6).astype(np.int32) for _ in range(3)]
    samples = []
    for prompt in prompts:
        for _ in range(4):
            drawn = sequence(rng, 6, int(rng.integers(2, 9)), float(rng.normal()))
            samples.append(replace(drawn, token_ids=np.concatenate([prompt, drawn.token_ids[6:]])))
    apart = [samples[group * 4 + index] for index in range(4) for group in range(3)]
    shared_positions, alone_positions = (
        sum(int((microbatch.segment_ids > 0).sum()) for microbatch in pack(order, one_shape(40, 2))[0]) for order in (samples, apart)
    )
    assert shared_positions < 0.7 * alone_positions
    loss, gradient = step_gradient(samples, 40, 2)
    other_loss, other_gradient = step_gradient(apart, 40, 2)
    assert loss == pytest.approx(other_loss, rel=1e-6)
    assert distance(gradient, other_gradient) < TOLERANCE
