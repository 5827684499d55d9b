"""Where arrays lie on many devices: logical axes to mesh axes, one table a role. XLA inserts the communication.

Mesh axes: `data` splits the batch; `fsdp` splits the batch and the weights, which are gathered at use; `tensor` splits heads,
feed-forward and vocabulary; `expert` splits experts (and the batch, elsewhere). All are Auto axes: code is written as for one
device, and only the activations that XLA would place badly are pinned by `constrain`.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from slipstream.models.parameters import Declaration, Params, declarations, from_leaves, leaf
from slipstream.models.spec import ModelSpec

Role = Literal["learner", "sampler"]
MESH_AXES = ("data", "fsdp", "tensor", "expert")

_TENSOR: Mapping[str, str] = dict.fromkeys(("vocab", "heads", "kv_heads", "mlp", "expert_mlp"), "tensor")
TABLES: Mapping[Role, Mapping[str, str]] = {
    "learner": {**_TENSOR, "expert": "expert", "embed": "fsdp"},
    "sampler": {**_TENSOR, "expert": "expert"},  # whole weights on every data row: a token's matrices are not worth a gather
}
BATCH = ("data", "fsdp", "expert")  # mesh axes over which rows of tokens are spread


def make_mesh(*, data: int = 1, fsdp: int = 1, tensor: int = 1, expert: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of the given axis sizes over `devices` (default: all). Raises ValueError where the product is not their number."""
    sizes = (data, fsdp, tensor, expert)
    devices = jax.devices() if devices is None else devices
    if prod(sizes) != len(devices):
        product = " x ".join(f"{name} {size}" for name, size in zip(MESH_AXES, sizes, strict=True))
        raise ValueError(f"a mesh of {product} needs {prod(sizes)} devices; there are {len(devices)}")
    return Mesh(np.array(devices).reshape(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def partition(declaration: Declaration, spec: ModelSpec, mesh: Mesh | AbstractMesh, role: Role) -> PartitionSpec:
    """How one parameter is split. An axis whose length the mesh axis does not divide stays whole on every device."""
    table = TABLES[role]

    def mesh_axis(axis: str) -> str | None:
        name = table.get(axis)
        return name if name and spec.axis_size(axis) % mesh.shape[name] == 0 else None

    return PartitionSpec(*(mesh_axis(axis) for axis in declaration.axes))


def shardings(spec: ModelSpec, mesh: Mesh, role: Role) -> dict[tuple[str, ...], NamedSharding]:
    """The sharding of every declared parameter, by its path."""
    return {declaration.path: NamedSharding(mesh, partition(declaration, spec, mesh, role)) for declaration in declarations(spec)}


def place(params: Params, spec: ModelSpec, mesh: Mesh, role: Role) -> Params:
    """Stacked parameters laid out on the mesh."""
    return from_leaves({path: jax.device_put(leaf(params, path), where) for path, where in shardings(spec, mesh, role).items()})


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Of arrays whose first axis is rows of tokens."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def constrain(x: jax.Array) -> jax.Array:
    """Activations [rows, ..., d] split by rows where a mesh is set (`jax.set_mesh`); unchanged elsewhere, or if rows do not divide.

    Without it XLA may follow the embedding's split and replicate every activation behind it.
    """
    mesh = present_mesh()
    if mesh is None or x.shape[0] % row_shares(mesh):
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH))


def gathered_embedding(embed: jax.Array) -> jax.Array:
    """The embedding [v, d] with whole rows, its vocabulary still split, so that looking tokens up needs no other layout."""
    mesh = present_mesh()
    if mesh is None:
        return embed
    vocab = None if embed.shape[0] % mesh.shape["tensor"] else "tensor"
    return jax.lax.with_sharding_constraint(embed, PartitionSpec(vocab, None))


def row_shares(mesh: Mesh | AbstractMesh | None) -> int:
    """Devices, or groups of them, that each have their own rows of tokens; 1 without a mesh."""
    return prod(mesh.shape[axis] for axis in BATCH) if mesh else 1


def over_rows(function: Callable[[Any, Any], tuple[Any, Any]], rows: Any = PartitionSpec(BATCH)) -> Callable[[Any, Any], tuple[Any, Any]]:
    """`function(whole, rows) -> (sums over rows, results by row)`, each device (or group) computing its own rows as it would alone.

    For what XLA would spread badly, or must not spread at all. The first axis of `rows` must divide; `rows` says so of each array, if
    it is not true of all. Unchanged where no mesh is set.
    """
    if present_mesh() is None:
        return function

    def alone(whole: Any, own: Any) -> tuple[Any, Any]:
        sums, by_row = function(whole, own)
        return jax.lax.psum(sums, BATCH), by_row

    outputs = (PartitionSpec(), PartitionSpec(BATCH))
    return jax.shard_map(alone, in_specs=(PartitionSpec(), rows), out_specs=outputs, axis_names=set(BATCH), check_vma=False)


def present_mesh() -> AbstractMesh | None:
    """The mesh that is set, if it is one of ours; None where a device is computing its own rows by itself (`jax.shard_map`)."""
    mesh = jax.sharding.get_abstract_mesh()
    ours = not mesh.empty and mesh.axis_names == MESH_AXES and AxisType.Manual not in mesh.axis_types
    return mesh if ours else None
