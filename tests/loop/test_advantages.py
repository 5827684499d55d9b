"""Advantages against cases computed by hand and against slow exact arithmetic; constant groups carry exactly nothing."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import Outcome, OutcomeKind, Rollout
from slipstream.loop.advantages import ADVANTAGES, dr_grpo, grpo, rloo
from slipstream.loop.sequences import group_advantages, zero_variance_groups
from tests.ledger.rollouts import make_rollout
from tests.loop.tickets import ticket

REWARDS = st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), min_size=2, max_size=12)  # exact in binary


def rewarded(index: int, rewards: list[float]) -> list[Rollout]:
    """The group of ticket `index` with these rewards."""
    outcomes = [Outcome(kind=OutcomeKind.VALUE, reward=reward) for reward in rewards]
    return [make_rollout(ticket(index), sample, [0], outcome) for sample, outcome in enumerate(outcomes)]


def advantages_of(rollouts: list[Rollout], name: str) -> np.ndarray:
    rewards = np.array([rollout.outcome.reward for rollout in rollouts])
    return group_advantages(rollouts, rewards, ADVANTAGES[name])


def test_one_right_answer_of_four_by_hand() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    assert rloo(rewards).tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert dr_grpo(rewards).tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])
    deviation = sqrt((0.75**2 + 3 * 0.25**2) / 4)
    assert grpo(rewards).tolist() == pytest.approx([0.75 / deviation, *[-0.25 / deviation] * 3], rel=1e-5)


def test_a_pair_by_hand() -> None:
    rewards = np.array([0.5, -1.0])
    assert rloo(rewards).tolist() == [1.5, -1.5]
    assert dr_grpo(rewards).tolist() == [0.75, -0.75]
    assert grpo(rewards).tolist() == pytest.approx([1.0, -1.0], rel=2e-6)


@given(REWARDS)
def test_every_kind_equals_its_definition_in_exact_arithmetic(rewards: list[float]) -> None:
    exact = [Fraction(reward) for reward in rewards]
    count = len(exact)
    for place, reward in enumerate(exact):
        others = [other for index, other in enumerate(exact) if index != place]
        assert rloo(np.array(rewards))[place] == pytest.approx(float(reward - sum(others) / (count - 1)), abs=1e-12)
        assert dr_grpo(np.array(rewards))[place] == pytest.approx(float(reward - sum(exact) / count), abs=1e-12)
    mean = sum(exact) / count
    deviation = sqrt(sum((reward - mean) ** 2 for reward in exact) / count)
    expected = [float(reward - mean) / (deviation + 1e-6) for reward in exact]
    assert grpo(np.array(rewards)).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, -7.7])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_a_constant_group_gets_exact_zeros(name: str, reward: float, count: int) -> None:
    """Rounding of the mean must not become a signal, least of all divided by a deviation of next to nothing."""
    assert advantages_of(rewarded(0, [reward] * count), name).tolist() == [0.0] * count


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "rloo"])
def test_groups_do_not_see_each_other(name: str) -> None:
    first, second, third = rewarded(0, [1.0, 0.0, 0.0]), rewarded(1, [1.0]), rewarded(2, [0.0, 0.5])
    together = advantages_of([*first, *second, *third], name)
    apart = [advantages_of(group, name) for group in (first, second, third)]
    assert together.tolist() == np.concatenate(apart).tolist()
    assert together[3] == 0.0  # the rest of its group had no verdict: no baseline, no signal
    assert zero_variance_groups([*first, *second, *third]) == 1


def test_reinforce_plus_plus_by_hand() -> None:
    """Group means 0.5 and 0.25; all differences 0.5, -0.5, 0.75, -0.25 x 3 and a constant group's zeros; their deviation over eight."""
    found = advantages_of([*rewarded(0, [1.0, 0.0]), *rewarded(1, [1.0, 0.0, 0.0, 0.0]), *rewarded(2, [1.0, 1.0])], "reinforce++")
    deviation = sqrt((2 * 0.5**2 + 0.75**2 + 3 * 0.25**2) / 8)
    assert found.tolist() == pytest.approx([value / deviation for value in (0.5, -0.5, 0.75, -0.25, -0.25, -0.25, 0.0, 0.0)], rel=1e-5)
    assert found[6:].tolist() == [0.0, 0.0]


def test_no_rollouts_are_no_advantages() -> None:
    assert group_advantages([], np.zeros(0), ADVANTAGES["rloo"]).shape == (0,)
