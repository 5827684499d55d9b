"""Where the learner's arrays lie: on its one device, or spread over a mesh of many. Used by the learner and, while traced, its programs.

Whatever is shaped like the parameters (parameters, gradients, moments) is split as they are declared; rows of tokens are spread over the
devices; all else, adapters and results included, is on every device. Programs are written as for one device, and pin what they return;
XLA puts the communication in. With several processes each calls the same with the same data, and has its part of every array.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from slipstream.config.schema import MeshSection
from slipstream.core.errors import ConfigError, Problem
from slipstream.models.numerics import Numerics
from slipstream.models.parameters import declarations
from slipstream.models.sharding import BATCH, make_mesh, over_rows, partition, present_mesh, row_shares
from slipstream.models.spec import ModelSpec

Tree = TypeVar("Tree")
_BY_ROW, _EVERYWHERE = PartitionSpec(BATCH), PartitionSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlacement:
    """`mesh` None: one device, and every tree comes back as it is."""

    mesh: Mesh | None

    @property
    def row_shares(self) -> int:
        """Devices, or groups of them, that each have their own rows of a microbatch."""
        return row_shares(self.mesh)

    @property
    def devices(self) -> int:
        """Those that compute."""
        return self.mesh.size if self.mesh else 1

    def active(self) -> AbstractContextManager[None]:
        """Within it the programs of this thread compute on the mesh."""
        return jax.set_mesh(self.mesh) if self.mesh else nullcontext()

    def parameters(self, tree: Tree, spec: ModelSpec) -> Tree:
        """A tree that has leaves shaped like the parameters of `spec`, laid out."""
        return _as_declared(self._put, tree, spec, self.mesh) if self.mesh else tree

    def rows(self, tree: Tree) -> Tree:
        """Host arrays [rows, row_tokens], and some that are smaller and go everywhere, laid out. Arrays on devices stay where they are."""
        if self.mesh is None:
            return tree
        return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else self._put(leaf, _of_rows(leaf)), tree)

    def _put(self, leaf: Any, where: PartitionSpec) -> jax.Array:
        assert self.mesh is not None
        sharding = NamedSharding(self.mesh, where)
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        if sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def configured_placement(config: MeshSection) -> DevicePlacement:
    """Over the first devices that there are. Raises ConfigError where they are too few, or where a process would have no part."""
    sizes = {"data": config.data, "fsdp": config.fsdp, "tensor": config.tensor, "expert": config.expert}
    wanted, devices, processes = prod(sizes.values()), jax.devices(), jax.process_count()
    if wanted > len(devices) or (processes > 1 and wanted < len(devices)):
        named = {f"mesh.{axis}": str(size) for axis, size in sizes.items() if size > 1} or {"mesh.data": "1"}
        fix = (
            f"takes {wanted} of {len(devices)} devices in {processes} processes, and all must take part; make the product {len(devices)}"
            if processes > 1
            else f"takes {wanted} devices, and there {'is' if len(devices) == 1 else 'are'} {len(devices)}; choose a smaller mesh, or give "
            f"a CPU so many virtual ones with XLA_FLAGS=--xla_force_host_platform_device_count={wanted} in the environment"
        )
        raise ConfigError([Problem(field=" x ".join(named), value=" x ".join(named.values()), fix=fix)])
    return DevicePlacement(mesh=make_mesh(**sizes, devices=devices[:wanted]) if wanted > 1 else None)


class WholeCopies:
    """Copies of laid-out arrays on this process's first device, for samplers; and the way back.

    Knows those of the last tree, so that a leaf which did not change since, such as a frozen base, is neither copied nor laid out again.
    Nothing waits for the devices.
    """

    def __init__(self, placement: DevicePlacement) -> None:
        self._placement = placement
        self._pairs: list[tuple[Any, Any]] = []  # laid out, and its copy

    def of(self, tree: Tree) -> Tree:
        """The tree on one device. On many it is gathered leaf by leaf, so that whole parameters never lie on all of them."""
        if self._placement.mesh is None:
            return tree
        known = {id(laid): copy for laid, copy in self._pairs}
        leaves, structure = jax.tree.flatten(tree)
        self._pairs = [(leaf, known[id(leaf)] if id(leaf) in known else _copy_here(leaf)) for leaf in leaves]
        return jax.tree.unflatten(structure, [copy for _, copy in self._pairs])

    def back(self, tree: Tree, spec: ModelSpec) -> Tree:
        """A tree of `of`, or another on one device, laid out."""
        known = {id(copy): laid for laid, copy in self._pairs}
        return self._placement.parameters(jax.tree.map(lambda leaf: known.get(id(leaf), leaf), tree), spec)


def _copy_here(laid: jax.Array) -> jax.Array:
    assert isinstance(laid.sharding, NamedSharding)
    copies = _gather(laid.sharding.mesh)(laid).addressable_shards
    return next(copy.data for copy in copies if copy.device == jax.local_devices()[0])


@cache
def _gather(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, _EVERYWHERE))


# ---- for programs, while they are traced; nothing changes where no mesh is set


def pinned(tree: Tree, spec: ModelSpec) -> Tree:
    """Results that have leaves shaped like the parameters, split like them."""
    mesh = present_mesh()
    return tree if mesh is None else _as_declared(jax.lax.with_sharding_constraint, tree, spec, mesh)


def everywhere(tree: Tree) -> Tree:
    """Small results, whole on every device, so that every process can read them."""
    return tree if present_mesh() is None else jax.lax.with_sharding_constraint(tree, _EVERYWHERE)


def on_rows(function: Callable[[Any, Any], tuple[Any, Any]], whole: Any, rows: Any, numerics: Numerics) -> tuple[Any, Any]:
    """`function(whole, rows) -> (sums over rows, results by row)` of arrays as `DevicePlacement.rows` lays them.

    With exact numerics every device computes its own rows by itself, in the shapes of a device alone, and only the sums meet: products
    are loops over tiles there, and XLA would have every device run through all of them.
    """
    split = over_rows(function, jax.tree.map(_of_rows, rows)) if numerics.exact else function
    return split(whole, rows)


def _of_rows(leaf: Any) -> PartitionSpec:
    return _BY_ROW if np.ndim(leaf) == 2 else _EVERYWHERE


def _as_declared(function: Callable[[Any, PartitionSpec], Any], tree: Tree, spec: ModelSpec, mesh: Mesh | AbstractMesh) -> Tree:
    """`function` of every leaf and its layout: that of the parameter whose path the leaf's own ends in, or everywhere."""
    known = {one.path: (one.shape(spec), _as_returned(partition(one, spec, mesh, "learner"), mesh)) for one in declarations(spec)}

    def one(place: Any, leaf: Any) -> Any:
        names = tuple(getattr(key, "name", "") for key in place)
        shape, where = next((known[names[-length:]] for length in (1, 2) if names[-length:] in known), ((), _EVERYWHERE))
        return function(leaf, where if np.shape(leaf) == shape else _EVERYWHERE)

    return jax.tree_util.tree_map_with_path(one, tree)


def _as_returned(where: PartitionSpec, mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """The same layout as XLA spells that of its results; programs would be compiled once more for arguments spelt otherwise."""
    split = [axis if axis is not None and mesh.shape[axis] > 1 else None for axis in where]
    while split and split[-1] is None:
        split.pop()
    return PartitionSpec(*split)
