"""What is taken off rewards before their advantages, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.loop.rewards import Shaping, overlong_penalty, shaped_rewards
from tests.ledger.rollouts import make_rollout
from tests.loop.tickets import ticket

RIGHT = Outcome(kind=OutcomeKind.VALUE, reward=1.0)


def test_the_overlong_penalty_falls_in_a_line_over_the_soft_range() -> None:
    assert [overlong_penalty(tokens, longest=20, soft=4) for tokens in (1, 16, 17, 18, 20)] == [0, 0, -0.25, -0.5, -1]


def test_rewards_less_penalty_and_kl_by_hand() -> None:
    """Three tokens of which the environment wrote one: its log-ratio is not counted. Length 3 of 4 with a soft range of 2: -0.5."""
    rollout = replace(
        make_rollout(ticket(0), 0, [1, 1, 1], RIGHT),
        logprobs=np.array([-1.0, -9.0, -2.0], np.float32),
        loss_mask=np.array([True, False, True]),
    )
    reference = np.array([-1.5, -1.0, -1.75], np.float32)
    assert shaped_rewards([rollout], Shaping()).tolist() == [1.0]
    assert shaped_rewards([rollout], Shaping(max_new_tokens=4, overlong_tokens=2)).tolist() == [0.5]
    sums = {"k1": 0.5 - 0.25, "k2": (0.25 + 0.0625) / 2, "k3": (np.exp(-0.5) - 0.5) + (np.exp(0.25) - 1.25)}
    for estimator, kl in sums.items():
        found = shaped_rewards([rollout], Shaping(kl_coefficient=0.1, kl_estimator=estimator), [reference])
        assert found.tolist() == pytest.approx([1.0 - 0.1 * kl])
    with pytest.raises(ValueError, match="reference"):
        shaped_rewards([rollout], Shaping(kl_coefficient=0.1))
