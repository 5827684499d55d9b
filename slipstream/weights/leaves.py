"""One parameter from the tensors of files: whole, or only the parts that this process's devices hold. Called by `files.py`.

On the host there is at a time one leaf (or its local parts) and one tensor of a file. Of a sharded leaf only the needed layers
and experts are opened, and of these tensors only the needed rows and columns are read.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.parameters import Declaration
from slipstream.models.spec import ModelSpec
from slipstream.weights.tensor_files import Tensors


def read_leaf(
    tensors: Tensors, declaration: Declaration, spec: ModelSpec, dtype: jnp.dtype | type, sharding: jax.sharding.Sharding | None
) -> jax.Array:
    """The stacked parameter as `sharding` spreads it; None: whole, on the default device."""
    shape = declaration.shape(spec)
    if sharding is None:
        return _settled(jnp.asarray(_read_part(tensors, declaration, spec, dtype, tuple(range(length) for length in shape))))
    parts: dict[tuple[range, ...], np.ndarray] = {}  # replicas on several devices are read once

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        ranges = tuple(range(*place.indices(length)) for place, length in zip(index, shape, strict=True))
        if ranges not in parts:
            parts[ranges] = _read_part(tensors, declaration, spec, dtype, ranges)
        return parts[ranges]

    return _settled(jax.make_array_from_callback(shape, sharding, part, dtype=np.dtype(dtype)))


def _settled(array: jax.Array) -> jax.Array:
    """The array once it needs numpy's memory no more: transfers run on by themselves, and on a CPU jax may go on using it as its own."""
    on_cpu = all(device.platform == "cpu" for device in array.sharding.device_set)
    return (array.copy() if on_cpu else array).block_until_ready()


def _read_part(
    tensors: Tensors, declaration: Declaration, spec: ModelSpec, dtype: jnp.dtype | type, ranges: tuple[range, ...]
) -> np.ndarray:
    """A rectangle of the parameter, filled tensor by tensor."""
    depth = len(declaration.stack)
    inner = dict(zip(declaration.axes[depth:], ranges[depth:], strict=True))
    whole = all(len(wanted) == spec.axis_size(axis) for axis, wanted in inner.items())
    host = np.empty([len(wanted) for wanted in ranges], np.dtype(dtype))
    for index, name in declaration.tensors(spec):
        if all(place in wanted for place, wanted in zip(index, ranges, strict=False)):
            local = tuple(wanted.index(place) for place, wanted in zip(index, ranges, strict=False))
            if whole:
                host[local] = declaration.from_file(tensors.read(name), spec)
            else:
                host[local] = _tensor_part(tensors, declaration, spec, name, inner)
    return host


def _tensor_part(tensors: Tensors, declaration: Declaration, spec: ModelSpec, name: str, wanted: Mapping[str, range]) -> np.ndarray:
    """A rectangle of one tensor, in the axes of memory. Axes flattened together are cut in the file where the first alone is cut."""
    cuts: list[slice] = []
    sizes: dict[str, int] = {}
    left: dict[str, slice] = {}  # what is still to be cut after reading
    for first, *rest in declaration.file_axes:
        sizes |= {axis: spec.axis_size(axis) for axis in (first, *rest)}
        stride = math.prod(sizes[axis] for axis in rest)
        if all(len(wanted[axis]) == sizes[axis] for axis in rest):
            cuts.append(slice(wanted[first].start * stride, wanted[first].stop * stride))
            sizes[first] = len(wanted[first])
        else:
            cuts.append(slice(None))
            left |= {axis: slice(wanted[axis].start, wanted[axis].stop) for axis in (first, *rest)}
    flat, axes = list(sizes), declaration.axes[len(declaration.stack) :]
    read = tensors.read_part(name, tuple(cuts)).reshape([sizes[axis] for axis in flat])
    return read.transpose([flat.index(axis) for axis in axes])[tuple(left.get(axis, slice(None)) for axis in axes)]
