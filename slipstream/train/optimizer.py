"""From a gradient to a step: clip, direction (AdamW, or Muon for matrices), decay, learning rate. Pure, from optax; built by the learner.

AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101. Muon: Jordan 2024 (kellerjordan.github.io/posts/muon), scaled to the size of
AdamW's steps as in Liu et al. 2025, arXiv 2502.16982, so that one learning rate serves both.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from slipstream.config.schema import OptimizerSection, WarmStartSection
from slipstream.models.parameters import Declaration, Params, declarations, from_leaves
from slipstream.models.spec import ModelSpec

MUON_RMS = 0.2  # root mean square of a Muon step's entries before the learning rate: that of AdamW's steps (Liu et al. 2025, 2.2)
_FIRST_MOMENT = {"f32": None, "bf16": jnp.bfloat16}  # None: as the parameters are


def reinforcement_schedule(config: OptimizerSection, updates: int) -> optax.Schedule:
    """Learning rate by optimizer step: linear rise over the warm-up, of which step 0 is the first part, then as configured.

    A linear or cosine fall ends at `final_fraction` of the rate with the last of the run's `updates`, which is numbered from 0.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    rise = optax.schedules.linear_schedule(peak / (warmup + 1), peak, warmup)
    falling = max(1, updates - 1 - warmup)
    after = {
        "constant": optax.schedules.constant_schedule(peak),
        "linear": optax.schedules.linear_schedule(peak, peak * config.final_fraction, falling),
        "cosine": optax.schedules.cosine_decay_schedule(peak, falling, config.final_fraction),
    }
    return optax.schedules.join_schedules([rise, after[config.schedule]], [warmup])


def warm_start_schedule(config: WarmStartSection) -> optax.Schedule:
    """Linear rise, then a cosine over all supervised stages down to a tenth of the peak."""
    total = sum(stage.steps for stage in config.stages)
    return optax.schedules.warmup_cosine_decay_schedule(
        config.learning_rate / (config.warmup_steps + 1),
        config.learning_rate,
        config.warmup_steps,
        max(total, config.warmup_steps + 1),
        config.learning_rate / 10,
    )


def warm_start_optimizer(config: WarmStartSection, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Global-norm clip at 1, then Adam."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=config.b2), optax.scale_by_learning_rate(schedule))


def reinforcement_optimizer(config: OptimizerSection, spec: ModelSpec, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Global-norm clip, then the configured direction; matrices decay, norms and biases do not.

    AdamW takes any tree of parameters (adapters: all of it decays); Muon that of the whole model.
    """
    first_moment = _FIRST_MOMENT[config.first_moment]
    direction = optax.scale_by_adam(b1=config.b1, b2=config.b2, mu_dtype=first_moment)
    if config.name == "muon":
        labels = _by_parameter(spec, lambda declaration: "muon" if _is_hidden_matrix(declaration) else "adam")
        muon = _muon(spec, config.muon_momentum, config.muon_iterations, first_moment)
        direction = optax.partition({"muon": muon, "adam": direction}, labels)
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        direction,
        optax.add_decayed_weights(config.weight_decay, lambda tree: _matrices(spec, tree)),
        optax.scale_by_learning_rate(schedule),
    )


def ess_factor(log_ratios: list[jax.Array], masks: list[jax.Array], power: float) -> jax.Array:
    """ESS ** power, where ESS = (sum r)^2 / (n sum r^2) over the masked tokens' ratios r: 1 for fresh data, 1 / n at worst.

    A learning rate multiplied by it is small where few tokens decide the gradient (Huang et al. 2026, Stable Asynchrony, arXiv
    2602.17616, with power 1/2 for Adam). `log_ratios`: log-prob before the update minus that when drawn; arrays of any shapes.
    1 where there is no token.
    """
    logs = jnp.concatenate([jnp.where(mask, values, -jnp.inf).ravel() for values, mask in zip(log_ratios, masks, strict=True)])
    ratio = jnp.exp(logs - jnp.maximum(jnp.max(logs), -1e30))  # the largest becomes 1: ESS does not depend on scale
    tokens = jnp.sum(logs > -jnp.inf)
    ess = jnp.sum(ratio) ** 2 / (jnp.maximum(tokens, 1) * jnp.sum(jnp.square(ratio)))
    return jnp.where(tokens > 0, ess, 1.0) ** power


def _matrices(spec: ModelSpec, tree: Any) -> Any:
    """True where a parameter is a matrix; factors of adapters all are."""
    if isinstance(tree, Params):
        return _by_parameter(spec, lambda declaration: bool(declaration.fan_in))
    return jax.tree.map(lambda _: True, tree)


def _is_hidden_matrix(declaration: Declaration) -> bool:
    return declaration.path[0] == "layers" and bool(declaration.fan_in)


def _by_parameter(spec: ModelSpec, choose: Callable[[Declaration], Any]) -> Params:
    """A tree of the shape of the parameters with something chosen for each."""
    return from_leaves({declaration.path: choose(declaration) for declaration in declarations(spec)})


def _muon(spec: ModelSpec, momentum: float, iterations: int, first_moment: Any) -> optax.GradientTransformation:
    """Each layer's (and expert's) matrix made orthogonal by itself, its input axes flattened into rows and its output axes into columns."""

    def axes(declaration: Declaration) -> MuonDimensionNumbers | optax.MaskedNode:
        if not _is_hidden_matrix(declaration):
            return optax.MaskedNode()
        inputs = tuple(index for index, axis in enumerate(declaration.axes) if axis in declaration.fan_in)
        outputs = tuple(index for index in range(len(declaration.stack), len(declaration.axes)) if index not in inputs)
        return MuonDimensionNumbers(reduction_axis=inputs, output_axis=outputs)

    def scale(declaration: Declaration) -> float | optax.MaskedNode:
        if not _is_hidden_matrix(declaration):
            return optax.MaskedNode()
        inputs = math.prod(spec.axis_size(axis) for axis in declaration.fan_in)
        outputs = math.prod(spec.axis_size(axis) for axis in declaration.axes[len(declaration.stack) :]) // inputs
        return MUON_RMS * math.sqrt(max(inputs, outputs))

    scales = _by_parameter(spec, scale)
    numbers: Any = _by_parameter(spec, axes)  # the library's type of such a tree knows no dataclasses
    orthogonal = scale_by_muon(ns_steps=iterations, beta=momentum, mu_dtype=first_moment, weight_dimension_numbers=numbers)
    return optax.chain(orthogonal, optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, scales)))
