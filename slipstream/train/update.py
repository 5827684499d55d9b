"""The learner's device programs: gradient of one microbatch, log-probs without gradient, one optimizer update. Pure and jitted.

Gradients are sums over tokens, each with a weight that was counted over the whole optimizer step, so the split into microbatches
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
from slipstream.models.decoder import Forward, packed_hidden_states
from slipstream.models.logprobs import selected_logprobs, vocabulary_rule
from slipstream.models.lora import Policy, adapters_of, base_of
from slipstream.models.numerics import Numerics, Program
from slipstream.models.parameters import output_matrix
from slipstream.models.quant import COMPUTE
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision
from slipstream.train.columns import Columns, ValueColumns
from slipstream.train.objectives import Objective, Tokens
from slipstream.train.objectives.proximal import interpolated
from slipstream.train.objectives.value import value_loss
from slipstream.train.packing import Microbatch
from slipstream.train.placement import everywhere, on_rows, pinned
from slipstream.train.value_head import Learned, Moved, Valued, moved_of, policy_of, values_of, with_moved

jax.tree_util.register_dataclass(Microbatch)
jax.tree_util.register_dataclass(ValueColumns, data_fields=["returns", "before"], meta_fields=["coefficient", "clip"])
jax.tree_util.register_dataclass(Columns)


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
    loss: jax.Array  # times the token's weight
    clipped: jax.Array  # 1 where a bound of the objective acted on the token
    masked: jax.Array  # 1 where the objective or a correction left the token out
    expert_load: jax.Array  # float32 [layers, experts], visits by real tokens; [layers, 0] without experts
    value_loss: jax.Array | None = None  # times the token's weight, before its coefficient; part of `loss`; None without a value head


class _Scored(NamedTuple):
    """Under the given parameters: [rows, row_tokens] twice, and the experts' load."""

    logprobs: jax.Array
    entropy: jax.Array
    expert_load: jax.Array
    hidden: jax.Array  # [rows, row_tokens, d]


def _hidden(policy: Policy, spec: ModelSpec, layout: Layout, batch: Microbatch, numerics: Numerics) -> Forward:
    rows = PackedRows(
        segments=jnp.asarray(batch.segment_ids), parents=jnp.asarray(batch.parent_ids), positions=jnp.asarray(batch.positions)
    )
    params, adapters = base_of(policy), adapters_of(policy)
    options: dict[str, Any] = {"dtype": COMPUTE[layout.precision], "scan": layout.scan, "remat": layout.remat, "adapters": adapters}
    attention = PACKED[layout.attention]
    if numerics.exact:
        attention = partial(aligned, page_tokens=layout.page_tokens, numerics=numerics)
    return packed_hidden_states(params, spec, jnp.asarray(batch.token_ids), rows, attention, numerics=numerics, **options)


def _logprobs(policy: Policy, spec: ModelSpec, layout: Layout, batch: Microbatch, temperature: jax.Array, numerics: Numerics) -> _Scored:
    found = _hidden(policy, spec, layout, batch, numerics)
    flat = found.hidden.reshape(-1, spec.d_model)
    output, turned = output_matrix(base_of(policy))
    assert isinstance(output, jax.Array), "the learner's weights are never quantised"
    scored = selected_logprobs(flat, output, jnp.reshape(batch.targets, -1), temperature, vocabulary_rule(spec), turned, numerics)
    shape = found.hidden.shape[:-1]
    return _Scored(scored.logprob.reshape(shape), scored.entropy.reshape(shape), found.expert_load, found.hidden)


def _score(
    policy: Policy, spec: ModelSpec, layout: Layout, batch: Microbatch, temperature: jax.Array, *, numerics: Numerics
) -> tuple[jax.Array, jax.Array]:
    def of_rows(whole: tuple[Policy, jax.Array], rows: Microbatch) -> tuple[tuple[()], tuple[jax.Array, jax.Array]]:
        found = _logprobs(whole[0], spec, layout, rows, whole[1], numerics)
        return (), (found.logprobs, found.entropy)

    return everywhere(on_rows(of_rows, (policy, temperature), batch, numerics)[1])


score = Program(_score, static=("spec", "layout"))
"""Log-probs of the targets and entropies, both [rows, row_tokens]."""


def _values(learned: Valued[Policy], spec: ModelSpec, layout: Layout, batch: Microbatch, *, numerics: Numerics) -> jax.Array:
    def of_rows(whole: Valued[Policy], rows: Microbatch) -> tuple[tuple[()], jax.Array]:
        return (), values_of(whole.head, _hidden(whole.part, spec, layout, rows, numerics).hidden)

    return everywhere(on_rows(of_rows, learned, batch, numerics)[1])


values = Program(_values, static=("spec", "layout"))
"""Values [rows, row_tokens] of the states in which the targets are chosen."""


def _accumulate(
    learned: Learned,
    spec: ModelSpec,
    layout: Layout,
    objective: Objective,
    gradient: Moved,
    batch: Microbatch,
    columns: Columns,
    temperature: jax.Array,
    *,
    numerics: Numerics,
) -> tuple[Moved, TokenStatistics]:
    def of_rows(whole: tuple[Learned, jax.Array], rows: tuple[Microbatch, Columns]) -> tuple[Any, dict[str, Any]]:
        learned, temperature = whole
        batch, columns = rows

        def loss_of(moved: Moved) -> tuple[jax.Array, tuple[jax.Array, dict[str, Any]]]:
            now = with_moved(learned, moved)
            current, entropy, load, hidden = _logprobs(policy_of(now), spec, layout, batch, temperature, numerics)
            found = objective(tokens_of(current, batch, columns))
            weights = jnp.asarray(columns.weights)
            loss, of_values = jnp.where(weights > 0, weights * found.loss, 0.0), None
            if columns.value is not None:
                of_values = jnp.where(weights > 0, weights * _value_loss(now, hidden, columns.value), 0.0)
                loss = loss + columns.value.coefficient * of_values
            by_token = {"logprobs": current, "entropy": entropy, "loss": loss, "clipped": found.clipped, "masked": found.masked}
            return jnp.sum(loss), (load, by_token | {"value_loss": of_values})

        (_, (load, by_token)), new = jax.value_and_grad(loss_of, has_aux=True)(moved_of(learned))
        return (new, load), by_token

    (new, load), by_token = on_rows(of_rows, (learned, temperature), (batch, columns), numerics)
    added = pinned(jax.tree.map(jnp.add, gradient, pinned(new, spec)), spec)
    return added, everywhere(TokenStatistics(**by_token, expert_load=load))


accumulate = Program(_accumulate, static=("spec", "layout", "objective"), donate=("gradient",))
"""`gradient` plus that of the microbatch's weighted sum of losses; and the statistics of its tokens."""


def _value_loss(learned: Learned, hidden: jax.Array, of: ValueColumns) -> jax.Array:
    assert isinstance(learned, Valued), "only a value head is taught values"
    before = None if of.before is None else jnp.asarray(of.before)
    return value_loss(values_of(learned.head, hidden), jnp.asarray(of.returns), before, of.clip)


def tokens_of(current: jax.Array, batch: Microbatch, columns: Columns) -> Tokens:
    """What the objective sees; what was not given is what it would be of the current policy itself."""
    own, behaviour = jax.lax.stop_gradient(current), jnp.asarray(batch.behaviour_logprobs)
    proximal = own if columns.proximal is None else jnp.asarray(columns.proximal)
    if columns.clock is not None:
        proximal = interpolated(own, behaviour, jnp.asarray(batch.versions), columns.clock[0], columns.clock[1])
    everywhere = jnp.ones(current.shape, bool)
    return Tokens(
        current=current,
        proximal=proximal,
        behaviour=behaviour,
        reference=own if columns.reference is None else jnp.asarray(columns.reference),
        advantages=jnp.asarray(batch.advantages),
        mask=jnp.asarray(columns.weights) > 0,
        segments=jnp.asarray(batch.segment_ids),
        kept=everywhere if columns.kept is None else jnp.asarray(columns.kept),
        corrected=everywhere if columns.corrected is None else jnp.asarray(columns.corrected),
    )


@partial(jax.jit, static_argnames=("optimizer", "spec"), donate_argnames=("state",))
def apply_gradient(
    optimizer: optax.GradientTransformation,
    params: Moved,
    state: optax.OptState,
    gradient: Moved,
    factor: jax.Array | float = 1.0,
    spec: ModelSpec | None = None,
) -> tuple[Moved, optax.OptState, jax.Array, jax.Array]:
    """New parameters, optimizer state, gradient norm before clipping, and update norm. The learning rate is multiplied by `factor`.

    A gradient that is not finite changes nothing, and neither does one of zero, which says nothing (its moments would still move the
    weights, and decay them): the old parameters and state come back, with an update norm of 0. The old parameters are never
    overwritten: samplers may hold them. `spec` is needed on a mesh: the results are split like its parameters.
    """
    norm = optax.tree.norm(gradient)
    moves = jnp.isfinite(norm) & (norm > 0)
    updates, stepped = optimizer.update(cast(optax.Updates, gradient), state, cast(optax.Params, params))
    updates = jax.tree.map(lambda update: jnp.where(moves, factor * update, jnp.zeros_like(update)), updates)
    state = jax.tree.map(lambda new, old: jnp.where(moves, new, old), stepped, state)
    moved = optax.apply_updates(cast(optax.Params, params), updates)
    if spec is not None:
        moved, state = pinned((moved, state), spec)
    return cast(Moved, moved), state, *everywhere((jnp.asarray(norm), jnp.asarray(optax.tree.norm(updates))))


def fresh_state(optimizer: optax.GradientTransformation, params: Moved) -> optax.OptState:
    """Optimizer state before the first update."""
    return optimizer.init(cast(optax.Params, params))


def zero_gradient(params: Moved) -> Moved:
    """Where accumulation starts."""
    return jax.tree.map(jnp.zeros_like, params)
