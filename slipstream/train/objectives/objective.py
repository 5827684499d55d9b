"""The registry of objectives: from the configuration to one function of a microbatch's tokens."""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import cast

from slipstream.config.schema import CorrectionSection, ObjectiveSection
from slipstream.train.objectives.cispo import cispo
from slipstream.train.objectives.corrections import with_correction
from slipstream.train.objectives.decoupled_ppo import decoupled_ppo
from slipstream.train.objectives.distill import distill
from slipstream.train.objectives.dppo import dppo
from slipstream.train.objectives.gspo import gspo
from slipstream.train.objectives.kl import kl_estimate
from slipstream.train.objectives.ppo import ppo
from slipstream.train.objectives.reinforce import reinforce, reinforce_is
from slipstream.train.objectives.sft import sft
from slipstream.train.objectives.tokens import Objective, TokenLoss, Tokens

_LOSSES: Mapping[str, Callable[[ObjectiveSection, Tokens], TokenLoss]] = {
    "decoupled_ppo": lambda of, tokens: decoupled_ppo(tokens, of.clip_low, of.clip_high, of.weight_cap),
    "ppo": lambda of, tokens: ppo(tokens, of.clip_low, of.clip_high),
    "dapo": lambda of, tokens: ppo(tokens, of.clip_low, of.clip_high),
    "reinforce_is": lambda of, tokens: reinforce_is(tokens, of.weight_cap),
    "reinforce": lambda of, tokens: reinforce(tokens),
    "cispo": lambda of, tokens: cispo(tokens, of.weight_cap),
    "gspo": lambda of, tokens: gspo(tokens, of.clip_low, of.clip_high),
    "dppo": lambda of, tokens: dppo(tokens, of.clip_low, of.clip_high, of.ratio_penalty),
    "distill": lambda of, tokens: distill(tokens, of.weight_cap),
    "sft": lambda of, tokens: sft(tokens),
}


def objective(config: ObjectiveSection, correction: CorrectionSection = CorrectionSection()) -> Objective:
    """The loss that the configuration names, with its corrections and its KL. Equal configurations share one function, and so one
    compiled program."""
    return _objective(cast(Hashable, config), cast(Hashable, correction))


@cache
def _objective(config: ObjectiveSection, correction: CorrectionSection) -> Objective:
    inner = with_correction(lambda tokens: _LOSSES[config.name](config, tokens), correction)
    if not (config.kl_coefficient and config.kl_in == "loss"):
        return inner

    def with_kl(tokens: Tokens) -> TokenLoss:
        found = inner(tokens)
        return found._replace(loss=found.loss + config.kl_coefficient * kl_estimate(config.kl_estimator, tokens.current, tokens.reference))

    return with_kl


def loss_uses_reference(config: ObjectiveSection) -> bool:
    """Whether `Tokens.reference` must be there."""
    return config.name == "distill" or (config.kl_coefficient > 0 and config.kl_in == "loss")


def nothing_without_advantage(config: ObjectiveSection) -> bool:
    """Whether a token of advantage 0 has no gradient, so that it need not be computed on."""
    more = config.name == "sft" or (config.name == "dppo" and config.ratio_penalty > 0) or config.advantage == "gae"
    return not more and not loss_uses_reference(config)


def uses_proximal(config: ObjectiveSection, correction: CorrectionSection) -> bool:
    """Whether `Tokens.proximal` is read."""
    return config.name == "decoupled_ppo" or correction.importance != "none"


def needs_reference(config: ObjectiveSection) -> bool:
    """Whether the rollouts of a step are scored under the reference policy, for the loss or for the reward."""
    return config.name == "distill" or config.kl_coefficient > 0
