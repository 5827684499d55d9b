"""Weights as tensors on the host with hashes, and back: from a learner's tree to a version that is served, and to a sampler's tree.

Adapters go beside their base, never merged, and never rounded: the base does not change, so it goes once, and whoever merges later
has the very sums that the learner has.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.records import WeightVersion
from slipstream.models.lora import TARGETS, Adapted, Adapters, LayerAdapters, Policy
from slipstream.models.parameters import LayerParams, Params, from_leaves
from slipstream.models.weight import Adapter
from slipstream.weights.chunks import HeldVersion
from slipstream.weights.digest import bytes_of, chunk_hash, chunks_of
from slipstream.weights.manifest import DTYPES, Chunk, ManifestError, Tensor, manifest_of

WireDtype = Literal["as_is", "bfloat16"]  # as_is: whatever the learner has, to the bit
Place = Callable[[str, np.ndarray], jax.Array]  # a tensor's name and value, to a device

_BASE, _ADAPTERS = "base.", "adapters.layers."


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A leaf that was copied to the host and hashed."""

    leaf: Any  # kept, so that no other leaf can be taken for it
    tensor: Tensor
    array: np.ndarray  # uint8 [bytes]


def take(policy: Policy, wire_dtype: WireDtype, before: Mapping[str, Taken], pool: Executor) -> dict[str, Taken]:
    """Every leaf by name, cast on its device, then on the host. Leaves that are the same objects as `before` are not looked at again.

    Raises ValueError for trees that no learner makes: unstacked or quantised layers.
    """
    casts = wire_dtype == "bfloat16" and not isinstance(policy, Adapted)
    found: dict[str, Taken] = {}
    for name, leaf in _leaves(policy).items():
        known = before.get(name)
        found[name] = known if known and known.leaf is leaf else _take(name, leaf, casts, pool)
    return found


def held_version(weights: WeightVersion, taken: Mapping[str, Taken]) -> HeldVersion:
    """The version that these leaves are, without patches."""
    manifest = manifest_of(weights.lineage, weights.version, tuple(one.tensor for one in taken.values()), _scalars(weights.params))
    return HeldVersion(manifest=manifest, arrays={name: one.array for name, one in taken.items()})


def on_device(name: str, array: np.ndarray) -> jax.Array:
    """The default place: the first device. On a CPU the array is not copied, so nothing may ever be written to it."""
    return jnp.asarray(array)


def place_policy(held: HeldVersion, place: Place = on_device, known: Mapping[str, jax.Array] | None = None) -> Policy:
    """The tree of a verified version. `known`: tensors by name that are there already. Raises ManifestError where it is no policy's."""
    placed = dict(known or {})
    for tensor in held.manifest.tensors:
        if tensor.name not in placed:
            placed[tensor.name] = place(tensor.name, typed(tensor, held.arrays[tensor.name]))
    return _policy(placed, dict(held.manifest.scalars))


def placed_leaves(policy: Policy) -> dict[str, jax.Array]:
    """The arrays of a tree by their names in manifests."""
    return _leaves(policy)


def typed(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """A tensor's bytes as what they are."""
    return array.view(jnp.dtype(tensor.dtype)).reshape(tensor.shape)


def _take(name: str, leaf: Any, casts: bool, pool: Executor) -> Taken:
    array = np.asarray(_cast("bfloat16")(leaf) if casts and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf)
    if array.dtype.name not in DTYPES:
        raise ValueError(f"{name} is {array.dtype.name}; one of {', '.join(DTYPES)} can be published")
    data = bytes_of(array)
    parts = chunks_of(data.data)
    chunks = tuple(Chunk(hash=hashed, bytes=len(part)) for hashed, part in zip(pool.map(chunk_hash, parts), parts, strict=True))
    return Taken(leaf=leaf, tensor=Tensor(name=name, shape=array.shape, dtype=array.dtype.name, chunks=chunks), array=data)


@cache
def _cast(dtype: str) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(partial(jnp.asarray, dtype=dtype))


def _leaves(policy: Policy) -> dict[str, Any]:
    places = jax.tree_util.tree_leaves_with_path(policy)
    found = {jax.tree_util.keystr(place, simple=True, separator="."): leaf for place, leaf in places}
    strange = sorted(name for name in found if name not in _known_names(isinstance(policy, Adapted)))
    if strange:
        raise ValueError(f"weights with {', '.join(strange)} cannot be published; stacked layers of plain arrays can")
    return found


def _scalars(policy: Policy) -> tuple[tuple[str, float], ...]:
    if not isinstance(policy, Adapted):
        return ()
    adapters = {name: getattr(policy.adapters.layers, name) for name in TARGETS}
    return tuple((f"{_ADAPTERS}{name}.scale", float(adapter.scale)) for name, adapter in adapters.items() if adapter)


def _policy(leaves: Mapping[str, Any], scalars: Mapping[str, float]) -> Policy:
    adapted = any(name.startswith(_ADAPTERS) for name in leaves)
    strange = sorted(leaves.keys() - _known_names(adapted)) + sorted(scalars.keys() - _scale_names() if adapted else scalars.keys())
    missing = sorted(_needed_names(adapted, leaves) - leaves.keys() - scalars.keys())
    if strange or missing:
        raise ManifestError(f"no policy: missing {', '.join(missing) or 'nothing'}, extra {', '.join(strange) or 'nothing'}")
    base = _params({name.removeprefix(_BASE): leaf for name, leaf in leaves.items() if not name.startswith(_ADAPTERS)})
    if not adapted:
        return base
    parts = {
        name: Adapter(**{part: leaves[f"{_ADAPTERS}{name}.{part}"] for part in ("down", "up")}, scale=scalars[f"{_ADAPTERS}{name}.scale"])
        for name in TARGETS
        if f"{_ADAPTERS}{name}.up" in leaves
    }
    return Adapted(base=base, adapters=Adapters(layers=LayerAdapters(**parts)))


def _params(leaves: Mapping[str, Any]) -> Params:
    return from_leaves({tuple(name.split(".")): leaf for name, leaf in leaves.items()})


@cache
def _known_names(adapted: bool) -> frozenset[str]:
    """Names that leaves of a tree can have."""
    plain = ["embed", "final_norm", "head", *(f"layers.{one.name}" for one in fields(LayerParams))]
    if not adapted:
        return frozenset(plain)
    return frozenset([f"{_BASE}{name}" for name in plain] + [f"{_ADAPTERS}{name}.{part}" for name in TARGETS for part in ("down", "up")])


@cache
def _scale_names() -> frozenset[str]:
    return frozenset(f"{_ADAPTERS}{name}.scale" for name in TARGETS)


def _needed_names(adapted: bool, leaves: Mapping[str, Any]) -> set[str]:
    """Names that a tree with these leaves must have, scalars included."""
    plain = {"embed", "final_norm", *(f"layers.{one.name}" for one in fields(LayerParams) if one.default is MISSING)}
    if not adapted:
        return plain
    targets = {name.removeprefix(_ADAPTERS).split(".")[0] for name in leaves if name.startswith(_ADAPTERS)}
    return {_BASE + name for name in plain} | {f"{_ADAPTERS}{name}.{part}" for name in targets for part in ("down", "up", "scale")}
