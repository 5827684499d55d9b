"""Generalised advantages by hand, against the paper's sum term by term, and where they are something simpler."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import TrainingSequence
from slipstream.loop.gae import Gae, token_advantages, valued, whitened
from tests.train import oracle

RAW = Gae(whiten=False)
NUMBERS = st.floats(-4, 4, allow_nan=False, width=32)


def sequence(mask: list[bool]) -> TrainingSequence:
    nothing = np.zeros(len(mask), np.float32)
    ids = np.arange(len(mask), dtype=np.int32)
    return TrainingSequence(token_ids=ids, loss_mask=np.array(mask), advantages=nothing, behaviour_logprobs=nothing, versions=ids)


def test_three_tokens_by_hand() -> None:
    """gamma 0.9, lambda 0.5, reward 2, values 0.5, 0.25, 1: errors -0.275, 0.65, 1, and each later one for 0.45 of it."""
    (one,) = valued(
        [sequence([False, True, True, True])], np.array([2.0]), [np.array([7, 0.5, 0.25, 1])], Gae(gamma=0.9, decay=0.5, whiten=False)
    )
    assert one.advantages.tolist() == pytest.approx([0.0, -0.275 + 0.45 * 1.1, 0.65 + 0.45 * 1.0, 1.0])
    assert one.returns is not None
    assert one.values is not None
    assert one.returns.tolist() == pytest.approx([0.0, 0.72, 1.35, 2.0])
    assert one.values.tolist() == [0.0, 0.5, 0.25, 1.0]
    assert (one.advantages.dtype, one.returns.dtype, one.values.dtype) == (np.float32,) * 3


@given(
    st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, max_size=9)), max_size=5), st.sampled_from([0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0])
)
def test_samples_of_any_lengths_get_the_papers_sum(samples: list[tuple[float, list[float]]], gamma: float, decay: float) -> None:
    rewards, values = np.array([reward for reward, _ in samples]), [np.array(own, np.float64) for _, own in samples]
    found = token_advantages(rewards, values, Gae(gamma=gamma, decay=decay))
    assert len(found) == len(samples)
    for advantages, (reward, own) in zip(found, samples, strict=True):
        assert advantages.tolist() == pytest.approx(oracle.gae(reward, own, gamma, decay), abs=1e-9)


def test_with_nothing_learned_they_are_the_reward_to_go() -> None:
    """REINFORCE without a baseline: all of a sample's tokens get its reward; what lambda hides from the first tokens shows below 1."""
    rewards, values = np.array([1.5, -0.5]), [np.zeros(4), np.zeros(2)]
    assert [one.tolist() for one in token_advantages(rewards, values, RAW)] == [[1.5] * 4, [-0.5] * 2]
    assert token_advantages(rewards, values, Gae(decay=0.5))[0].tolist() == [1.5 / 8, 1.5 / 4, 1.5 / 2, 1.5]


def test_what_an_environment_wrote_takes_no_time_and_has_no_value() -> None:
    together, apart = sequence([False, True, True, True]), sequence([False, True, False, False, True, False, True, False])
    values = [np.array([np.nan, 0.5, 0.25, 1.0]), np.array([np.nan, 0.5, np.nan, np.nan, 0.25, np.nan, 1.0, np.nan])]
    one, other = valued([together, apart], np.array([2.0, 2.0]), values, Gae(gamma=0.9, decay=0.5, whiten=False))
    assert other.advantages.tolist() == [0.0, one.advantages[1], 0.0, 0.0, one.advantages[2], 0.0, one.advantages[3], 0.0]
    assert other.returns is not None
    assert np.flatnonzero(other.returns).tolist() == [1, 4, 6]


def test_whitening_is_over_all_tokens_and_leaves_what_the_head_is_taught() -> None:
    sequences = [sequence([False, True, True, True]), sequence([False, True]), sequence([False, False])]
    rewards, values = np.array([1.0, 0.0, 9.0]), [np.array([0, 0.1, 0.2, 0.3]), np.array([0, 0.5]), np.zeros(2)]
    white, plain = valued(sequences, rewards, values, Gae(decay=0.9)), valued(sequences, rewards, values, Gae(decay=0.9, whiten=False))
    every = np.concatenate([one.advantages[one.loss_mask] for one in white])
    before = np.concatenate([one.advantages[one.loss_mask] for one in plain])
    assert (every.mean(), every.std()) == pytest.approx((0.0, 1.0), abs=1e-5)
    np.testing.assert_allclose(every, (before - before.mean()) / before.std(), rtol=1e-4)
    for one, other in zip(white, plain, strict=True):
        np.testing.assert_array_equal(one.returns, other.returns)
        np.testing.assert_array_equal(one.values, other.values)


def test_equal_advantages_whiten_to_exact_zeros_and_nothing_is_nothing() -> None:
    assert [one.tolist() for one in whitened([np.full(2, 0.1), np.full(1, 0.1), np.zeros(0)])] == [[0.0] * 2, [0.0], []]
    assert valued([], np.zeros(0), [], Gae()) == []
    assert np.isnan(whitened([np.array([np.nan, 1.0])])[0]).all()  # a broken head must stop the step, not vanish
