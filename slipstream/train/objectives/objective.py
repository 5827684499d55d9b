"""The registry of objectives: from the configuration's name and settings to a per-token loss."""

from collections.abc import Callable
from functools import cache

import jax

from slipstream.config.schema import ObjectiveSection
from slipstream.train.objectives.decoupled_ppo import decoupled_ppo
from slipstream.train.objectives.ppo import ppo
from slipstream.train.objectives.reinforce import reinforce, reinforce_is

TokenLoss = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def objective(config: ObjectiveSection) -> TokenLoss:
    """The per-token loss (current, proximal, behaviour, advantages) -> (loss, limited) that the configuration names. Equal configurations
    share one function, and so one compiled program."""
    return _token_loss(config.name, config.clip_low, config.clip_high, config.weight_cap)


@cache
def _token_loss(name: str, low: float, high: float, cap: float) -> TokenLoss:
    return {
        "decoupled_ppo": lambda current, proximal, behaviour, advantages: decoupled_ppo(
            current, proximal, behaviour, advantages, low, high, cap
        ),
        "ppo": lambda current, proximal, behaviour, advantages: ppo(current, behaviour, advantages, low, high),
        "reinforce_is": lambda current, proximal, behaviour, advantages: reinforce_is(current, behaviour, advantages, cap),
        "reinforce": lambda current, proximal, behaviour, advantages: reinforce(current, advantages),
    }[name]
