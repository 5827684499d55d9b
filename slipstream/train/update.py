"""The learner's device programs: gradient of one microbatch, log-probs without gradient, one optimizer update. Pure and jitted.

Gradients are sums over tokens divided by a denominator counted over the whole optimizer step, so the split into microbatches
changes nothing but rounding.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from slipstream.models.attention.aligned import aligned
from slipstream.models.attention.registry import PACKED
from slipstream.models.attention.rule import PackedRows
from slipstream.models.decoder import packed_hidden_states
from slipstream.models.logprobs import selected_logprobs, vocabulary_rule
from slipstream.models.numerics import Numerics, Program
from slipstream.models.parameters import Params, output_matrix
from slipstream.models.quant import COMPUTE
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision
from slipstream.train.objectives import TokenLoss
from slipstream.train.packing import Microbatch

jax.tree_util.register_dataclass(Microbatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the learner's layers are compiled; hashable, so a static argument."""

    scan: bool  # one compiled layer in a loop
    remat: bool  # recompute activations in the backward pass
    attention: str = "dense"  # a key of `models.attention.registry.PACKED`; exact numerics have their own
    precision: Precision = "f32"  # of activations and products; master weights and their gradients are float32
    page_tokens: int = 1  # segments start at multiples of this; the engine's page where numerics are exact


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """Per position [rows, row_tokens] of a microbatch; meaningless where the loss mask is 0."""

    logprobs: jax.Array  # of the target under the current policy
    entropy: jax.Array  # of the whole distribution
    loss: jax.Array
    limited: jax.Array  # 1 where the objective clipped the token or left it out
    expert_load: jax.Array  # float32 [layers, experts], visits by real tokens; [layers, 0] without experts


class _Scored(NamedTuple):
    """Under the given parameters: [rows, row_tokens] twice, and the experts' load."""

    logprobs: jax.Array
    entropy: jax.Array
    expert_load: jax.Array


def _logprobs(params: Params, spec: ModelSpec, layout: Layout, batch: Microbatch, temperature: jax.Array, numerics: Numerics) -> _Scored:
    rows = PackedRows(
        segments=jnp.asarray(batch.segment_ids), parents=jnp.asarray(batch.parent_ids), positions=jnp.asarray(batch.positions)
    )
    options: dict[str, Any] = {"dtype": COMPUTE[layout.precision], "scan": layout.scan, "remat": layout.remat}
    attention = PACKED[layout.attention]
    if numerics.exact:
        attention = partial(aligned, page_tokens=layout.page_tokens, numerics=numerics)
    found = packed_hidden_states(params, spec, jnp.asarray(batch.token_ids), rows, attention, numerics=numerics, **options)
    flat = found.hidden.reshape(-1, spec.d_model)
    output = output_matrix(params)
    assert isinstance(output, jax.Array), "the learner's weights are never quantised"
    scored = selected_logprobs(flat, output, jnp.reshape(batch.targets, -1), temperature, vocabulary_rule(spec), numerics)
    shape = rows.segments.shape
    return _Scored(logprobs=scored.logprob.reshape(shape), entropy=scored.entropy.reshape(shape), expert_load=found.expert_load)


def _score(
    params: Params, spec: ModelSpec, layout: Layout, batch: Microbatch, temperature: jax.Array, *, numerics: Numerics
) -> tuple[jax.Array, jax.Array]:
    return _logprobs(params, spec, layout, batch, temperature, numerics)[:2]


score = Program(_score, static=("spec", "layout"))
"""Log-probs of the targets and entropies, both [rows, row_tokens]."""


def _accumulate(
    params: Params,
    spec: ModelSpec,
    layout: Layout,
    token_loss: TokenLoss,
    gradient: Params,
    batch: Microbatch,
    proximal: jax.Array | None,
    temperature: jax.Array,
    denominator: jax.Array,
    *,
    numerics: Numerics,
) -> tuple[Params, TokenStatistics]:
    def loss_of(params: Params) -> tuple[jax.Array, TokenStatistics]:
        current, entropy, load = _logprobs(params, spec, layout, batch, temperature, numerics)
        near = jax.lax.stop_gradient(current) if proximal is None else proximal
        loss, limited = token_loss(current, near, jnp.asarray(batch.behaviour_logprobs), jnp.asarray(batch.advantages))
        masked = jnp.where(batch.loss_mask > 0, loss, 0.0)
        statistics = TokenStatistics(logprobs=current, entropy=entropy, loss=masked, limited=limited, expert_load=load)
        return jnp.sum(masked) / denominator, statistics

    (_, statistics), new = jax.value_and_grad(loss_of, has_aux=True)(params)
    return jax.tree.map(jnp.add, gradient, new), statistics


accumulate = Program(_accumulate, static=("spec", "layout", "token_loss"), donate=("gradient",))
"""`gradient` plus that of the microbatch's loss sum / denominator; and the statistics of its tokens.

`proximal` None means the proximal policy is the current one (the first update of a step).
"""


@partial(jax.jit, static_argnames=("optimizer",), donate_argnames=("state",))
def apply_gradient(
    optimizer: optax.GradientTransformation, params: Params, state: optax.OptState, gradient: Params
) -> tuple[Params, optax.OptState, jax.Array, jax.Array]:
    """New parameters, optimizer state, gradient norm before clipping, and update norm.

    A gradient that is not finite changes nothing: the old parameters and state come back, with an update norm of 0. The old
    parameters are never overwritten: samplers may hold them.
    """
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)
    updates, stepped = optimizer.update(cast(optax.Updates, gradient), state, cast(optax.Params, params))
    updates = jax.tree.map(lambda update: jnp.where(finite, update, jnp.zeros_like(update)), updates)
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), stepped, state)
    moved = optax.apply_updates(cast(optax.Params, params), updates)
    return cast(Params, moved), state, jnp.asarray(norm), jnp.asarray(optax.tree.norm(updates))


def fresh_state(optimizer: optax.GradientTransformation, params: Params) -> optax.OptState:
    """Optimizer state before the first update."""
    return optimizer.init(cast(optax.Params, params))


def zero_gradient(params: Params) -> Params:
    """Where accumulation starts."""
    return jax.tree.map(jnp.zeros_like, params)
