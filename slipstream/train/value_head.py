"""The value head: from the decoder's last hidden state at a position to the return expected from there, and its place beside a policy.

One linear map, trained in the same optimizer steps as the policy and kept in its checkpoints; samplers never see it. The policy may
be whole parameters or adapters on a frozen base: the head stands beside either. Pure; called by the learner and its device programs.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import optax

from slipstream.config.schema import OptimizerSection
from slipstream.models.lora import Policy, Trained, trained, with_trained
from slipstream.models.spec import ModelSpec

Part = TypeVar("Part")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHead:
    """Float32 in every precision of the learner."""

    weight: jax.Array  # [d]
    bias: jax.Array  # []


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Valued(Generic[Part]):
    """A value head beside a policy, or beside what an optimizer moves of one (and its gradient)."""

    part: Part
    head: ValueHead


Learned: TypeAlias = Policy | Valued[Policy]
Moved: TypeAlias = Trained | Valued[Trained]


def fresh_head(spec: ModelSpec) -> ValueHead:
    """All zero: before anything is learned, the value of everything is 0, and advantages are plain returns."""
    return ValueHead(weight=jnp.zeros(spec.d_model), bias=jnp.zeros(()))


def values_of(head: ValueHead, hidden: jax.Array) -> jax.Array:
    """Values [...] of hidden states [..., d]: of the state in which the position's target is chosen."""
    return jnp.einsum("...d,d->...", hidden.astype(jnp.float32), head.weight) + head.bias


def policy_of(learned: Learned) -> Policy:
    """The policy without the head."""
    return learned.part if isinstance(learned, Valued) else learned


def moved_of(learned: Learned) -> Moved:
    """What an optimizer moves: the policy's trained part, and the head where there is one."""
    return Valued(part=trained(learned.part), head=learned.head) if isinstance(learned, Valued) else trained(learned)


def with_moved(learned: Learned, new: Moved) -> Learned:
    """The policy, and the head where there is one, after a move."""
    if isinstance(learned, Valued):
        assert isinstance(new, Valued)
        return Valued(part=with_trained(learned.part, new.part), head=new.head)
    assert not isinstance(new, Valued)
    return with_trained(learned, new)


def with_head(policy: optax.GradientTransformation, config: OptimizerSection, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Both moved in one step: the policy by its own optimizer, the head by Adam at the rate of `schedule`.

    Their gradients are clipped apart, so that neither takes the other's share of the norm; the head does not decay.
    """
    head = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.scale_by_adam(b1=config.b1, b2=config.b2),
        optax.scale_by_learning_rate(schedule),
    )

    def init(params: Any) -> tuple[optax.OptState, optax.OptState]:
        return policy.init(params.part), head.init(params.head)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        of_policy, policy_state = policy.update(updates.part, state[0], params.part)
        of_head, head_state = head.update(updates.head, state[1], params.head)
        return Valued(part=of_policy, head=cast(ValueHead, of_head)), (policy_state, head_state)

    return optax.GradientTransformation(init, update)
