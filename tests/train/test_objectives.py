"""Each objective against its formula in plain Python, numbers worked out by hand, and the direction of its gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.config.schema import ObjectiveSection
from slipstream.train.objectives import TokenLoss, objective
from slipstream.train.objectives.sft import sft

LOW, HIGH, CAP = 0.2, 0.3, 2.5


def loss_named(name: str) -> TokenLoss:
    return objective(ObjectiveSection.model_validate({"name": name, "clip_low": LOW, "clip_high": HIGH, "weight_cap": CAP}))


def slow_surrogate(ratio: float, advantage: float) -> tuple[float, float, bool]:
    """Loss, its slope in log pi, and whether the clip cut it."""
    bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
    if bounded * advantage < ratio * advantage:
        return -bounded * advantage, 0.0, True
    return -ratio * advantage, -ratio * advantage, False


def slow(name: str, current: float, proximal: float, behaviour: float, advantage: float) -> tuple[float, float, float]:
    """Loss, slope in the current log-prob, limited."""
    ratio = math.exp(current - behaviour)
    if name == "reinforce":
        return -advantage * current, -advantage, 0.0
    if name == "reinforce_is":
        weight = min(ratio, CAP)
        return -weight * advantage * current, -weight * advantage, float(ratio > CAP)
    if name == "ppo":
        loss, slope, cut = slow_surrogate(ratio, advantage)
        return loss, slope, float(cut)
    if name == "decoupled_ppo":
        weight = math.exp(proximal - behaviour)
        if weight > CAP:
            return 0.0, 0.0, 1.0
        loss, slope, cut = slow_surrogate(math.exp(current - proximal), advantage)
        return weight * loss, weight * slope, float(cut)
    return -current, -1.0, 0.0  # sft


NAMES = ["ppo", "decoupled_ppo", "reinforce", "reinforce_is", "sft"]


def evaluate(name: str, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss, slope in the current log-prob and limited, each [tokens]."""
    loss_of = sft if name == "sft" else loss_named(name)
    current, *others = (jnp.asarray(column, jnp.float32) for column in columns)
    loss, limited = loss_of(current, others[0], others[1], others[2])
    slope = jax.grad(lambda current: loss_of(current, others[0], others[1], others[2])[0].sum())(current)
    return np.asarray(loss), np.asarray(slope), np.asarray(limited)


@pytest.mark.parametrize("name", NAMES)
def test_against_the_formula(name: str) -> None:
    rng = np.random.default_rng(4)
    current, advantage = -2 + rng.normal(size=400), rng.normal(size=400)
    proximal, behaviour = current + 0.4 * rng.normal(size=400), current + 0.7 * rng.normal(size=400)
    advantage[:20] = 0.0
    expected = np.array([slow(name, *row) for row in zip(current, proximal, behaviour, advantage, strict=True)])
    for found, column in zip(evaluate(name, current, proximal, behaviour, advantage), expected.T, strict=True):
        np.testing.assert_allclose(found, column, rtol=2e-5, atol=1e-6)
    if name not in ("reinforce", "sft"):
        assert 0.05 < expected[:, 2].mean() < 0.6  # both branches are in the data


# name: current, proximal, behaviour (as probabilities), advantage -> loss, slope, limited; low 0.2, high 0.3, cap 2.5
BY_HAND = [
    ("ppo", 0.5, 0.1, 0.5, 2.0, -2.0, -2.0, 0),  # ratio 1: -A
    ("ppo", 0.5, 0.1, 0.25, 2.0, -2.6, 0.0, 1),  # ratio 2 clipped to 1.3
    ("ppo", 0.5, 0.1, 0.25, -2.0, 4.0, 4.0, 0),  # a bad token made likelier: never clipped
    ("ppo", 0.2, 0.1, 0.4, -1.0, 0.8, 0.0, 1),  # ratio 0.5 clipped to 0.8
    ("ppo", 0.2, 0.1, 0.4, 1.0, -0.5, -0.5, 0),  # a good token made rarer: never clipped
    ("decoupled_ppo", 0.4, 0.4, 0.2, 1.0, -2.0, -2.0, 0),  # w = 2, u = 1
    ("decoupled_ppo", 0.8, 0.4, 0.2, 1.0, -2.6, 0.0, 1),  # w = 2, u = 2 clipped to 1.3
    ("decoupled_ppo", 0.4, 0.4, 0.1, 1.0, 0.0, 0.0, 1),  # w = 4 above 2.5: left out
    ("decoupled_ppo", 0.3, 0.4, 0.8, -2.0, 0.8, 0.0, 1),  # w = 0.5, u = 0.75 clipped to 0.8
    ("reinforce_is", 0.5, 0.1, 0.25, 3.0, 6.0 * math.log(2), -6.0, 0),  # r = 2
    ("reinforce_is", 0.5, 0.1, 0.1, 3.0, 7.5 * math.log(2), -7.5, 1),  # r = 5 cut to 2.5
    ("reinforce", 0.5, 0.1, 0.1, 3.0, 3.0 * math.log(2), -3.0, 0),
    ("sft", 0.25, 0.1, 0.1, 3.0, 2.0 * math.log(2), -1.0, 0),
]


@pytest.mark.parametrize(("name", "current", "proximal", "behaviour", "advantage", "loss", "slope", "limited"), BY_HAND)
def test_by_hand(name, current, proximal, behaviour, advantage, loss, slope, limited) -> None:
    columns = [np.array([value]) for value in (math.log(current), math.log(proximal), math.log(behaviour), advantage)]
    found = evaluate(name, *columns)
    assert [float(array[0]) for array in found] == pytest.approx([loss, slope, limited], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sft"])
def test_a_step_downhill_raises_good_tokens_and_lowers_bad_ones(name: str) -> None:
    fresh = np.full(2, -1.5)
    _, slope, limited = evaluate(name, fresh, fresh, fresh, np.array([1.0, -1.0]))
    np.testing.assert_allclose(-slope, [1.0, -1.0], rtol=1e-6)
    np.testing.assert_array_equal(limited, 0.0)


def test_without_lag_decoupled_ppo_is_ppo() -> None:
    """Proximal equal to behaviour: weight 1."""
    rng = np.random.default_rng(1)
    current, behaviour, advantage = -2 + rng.normal(size=200), -2 + rng.normal(size=200), rng.normal(size=200)
    for found, expected in zip(
        evaluate("decoupled_ppo", current, behaviour, behaviour, advantage),
        evaluate("ppo", current, behaviour, behaviour, advantage),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_the_proximal_policy_carries_no_gradient() -> None:
    loss_of, fixed = loss_named("decoupled_ppo"), jnp.asarray([-1.0, -2.0])
    slope = jax.grad(lambda near: loss_of(fixed, near, fixed, jnp.ones(2))[0].sum())(fixed - 0.1)
    np.testing.assert_array_equal(slope, 0.0)


@pytest.mark.parametrize("behaviour", [-200.0, -np.inf, np.nan])
def test_decoupled_ppo_leaves_absurd_behaviour_out_without_a_nan(behaviour: float) -> None:
    """A sampler may send anything; one token of it must not make the whole step's gradient useless."""
    one = np.array([-1.0])
    loss, slope, limited = evaluate("decoupled_ppo", one, one, np.array([behaviour]), one)
    assert [float(array[0]) for array in (loss, slope, limited)] == [0.0, 0.0, 1.0]


def test_equal_configurations_share_one_function() -> None:
    """And so one compiled program."""
    assert loss_named("ppo") is loss_named("ppo")
    assert loss_named("ppo") is not loss_named("decoupled_ppo")
    assert objective(ObjectiveSection(clip_low=0.1)) is not objective(ObjectiveSection(clip_low=0.2))
