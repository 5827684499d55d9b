"""Low-rank adapters: a tree parallel to the parameters, applied by `project`, merged into them, or kept beside a frozen base.

Hu et al. 2021, arXiv 2106.09685. Only matrices of dense layers have adapters; embeddings, norms and experts have none.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp

from slipstream.models.parameters import Declaration, LayerParams, Params, declarations, fresh_matrix
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Adapter, Quantised


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAdapters:
    """Adapters of one layer, or of all with a leading layer axis. None where a matrix has none."""

    q: Adapter | None = None
    k: Adapter | None = None
    v: Adapter | None = None
    o: Adapter | None = None
    gate: Adapter | None = None
    up: Adapter | None = None
    down: Adapter | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Adapters of a whole decoder, stacked by layer."""

    layers: LayerAdapters


TARGETS = tuple(field.name for field in fields(LayerAdapters))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Which matrices have adapters, and how large."""

    rank: int
    alpha: float  # the addition is scaled by alpha / rank
    targets: tuple[str, ...]  # of TARGETS, in their order

    def __post_init__(self) -> None:
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets:
            raise ValueError(f"targets {list(self.targets)}: must be some of {', '.join(TARGETS)}")
        if self.rank < 1:
            raise ValueError(f"rank = {self.rank}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One adapted matrix: its declaration, and which of its axes are summed over when it is applied."""

    name: str
    declaration: Declaration

    @property
    def inputs(self) -> int:
        return len(self.declaration.fan_in)

    def shapes(self, spec: ModelSpec, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Stacked shapes of the adapter's two matrices: [L, i, r] and [L, r, o]."""
        layers, *matrix = self.declaration.shape(spec)
        return (layers, *matrix[: self.inputs], rank), (layers, rank, *matrix[self.inputs :])


def adapted(spec: ModelSpec, lora: LoraSpec) -> list[Target]:
    """The matrices that get adapters. Raises ValueError for those of experts."""
    found = {declaration.path[-1]: declaration for declaration in declarations(spec) if declaration.path[0] == "layers"}
    experts = [name for name in lora.targets if found[name].stack != ("layer",)]
    if experts:
        raise ValueError(f"targets {', '.join(experts)}: matrices of experts have no adapters; choose q, k, v, o")
    return [Target(name=name, declaration=found[name]) for name in TARGETS if name in lora.targets]


def initial_adapters(spec: ModelSpec, lora: LoraSpec, seed: int) -> Adapters:
    """Adapters that change nothing yet: `down` normal with deviation 1/sqrt(inputs), `up` zero."""

    def draw(target: Target) -> Adapter:
        down, up = target.shapes(spec, lora.rank)
        drawn = fresh_matrix(down, math.prod(down[1:-1]), seed, "lora", target.name)
        return Adapter(down=drawn, up=jnp.zeros(up), scale=lora.alpha / lora.rank)

    return Adapters(layers=LayerAdapters(**{target.name: draw(target) for target in adapted(spec, lora)}))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A frozen base with the adapters that are trained beside it."""

    base: Params
    adapters: Adapters


Policy: TypeAlias = Params | Adapted
Trained: TypeAlias = Params | Adapters


def base_of(policy: Policy) -> Params:
    """The parameters without adapters."""
    return policy.base if isinstance(policy, Adapted) else policy


def adapters_of(policy: Policy) -> Adapters | None:
    """The adapters; None where all parameters are trained."""
    return policy.adapters if isinstance(policy, Adapted) else None


def trained(policy: Policy) -> Trained:
    """What an optimizer moves: the adapters, or all parameters."""
    return policy.adapters if isinstance(policy, Adapted) else policy


def with_trained(policy: Policy, new: Trained) -> Policy:
    """The policy with its trained part replaced."""
    if isinstance(policy, Adapted):
        assert isinstance(new, Adapters)
        return replace(policy, adapters=new)
    assert isinstance(new, Params)
    return new


def whole(policy: Policy) -> Params:
    """Plain parameters: adapters, if there are any, merged in."""
    return _merge(policy.base, policy.adapters) if isinstance(policy, Adapted) else policy


def merge(params: Params, adapters: Adapters) -> Params:
    """Stacked parameters with the adapters added in: W + scale down @ up. Raises ValueError for a quantised base."""
    layers = params.layers
    assert isinstance(layers, LayerParams), "merging needs stacked layers"
    changed = {name: _merged(name, getattr(layers, name), adapter) for name in TARGETS if (adapter := getattr(adapters.layers, name))}
    return replace(params, layers=replace(layers, **changed))


_merge = jax.jit(merge)


def _merged(name: str, weight: jax.Array | Quantised, adapter: Adapter) -> jax.Array:
    if isinstance(weight, Quantised):
        raise ValueError(f"{name} is quantised; adapters can only be merged into full-precision weights")
    depth, rank = adapter.up.shape[0], adapter.up.shape[1]
    low = adapter.down.reshape(depth, -1, rank).astype(jnp.float32)
    addition = jnp.einsum("lir,lro->lio", low, adapter.up.reshape(depth, rank, -1).astype(jnp.float32))
    total = weight.astype(jnp.float32) + (adapter.scale * addition).reshape(weight.shape)
    return total.astype(weight.dtype)
