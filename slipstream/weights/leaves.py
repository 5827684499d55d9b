"""One parameter from the tensors of files: whole, or only the parts that this process's devices hold. Called by `files.py`.

On the host there is at a time one leaf (or its local parts) and one tensor of a file: every leaf is read into the same memory.
Memory of its own for each would not do: jax gives a leaf's back on a thread of its own, perhaps when the next one is there already.
Of a sharded leaf only the needed layers and experts are opened, and of these tensors only the needed rows and columns are read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.parameters import Declaration
from slipstream.models.spec import ModelSpec
from slipstream.weights.tensor_files import Tensors

Rectangle = tuple[range, ...]


class Staging:
    """Host memory for one leaf at a time, as large as the largest needs; `clear` gives it to the next."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes, np.uint8)
        self._taken = 0

    def clear(self) -> None:
        """What was taken before may be written over: no array may be left that reads it."""
        self._taken = 0

    def take(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array in this memory, its content whatever was there. Raises ValueError past the end."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._taken + nbytes > len(self._memory):
            raise ValueError(f"staging of {len(self._memory)} bytes has no room for {nbytes} behind {self._taken}")
        part = self._memory[self._taken : self._taken + nbytes]
        self._taken += nbytes
        return part.view(dtype).reshape(shape)


def staging_for(
    wanted: Iterable[Declaration], spec: ModelSpec, dtype: jnp.dtype | type, shardings: Mapping[tuple[str, ...], jax.sharding.Sharding]
) -> Staging:
    """Memory for any one of these parameters, or for the parts of it that this process's devices hold."""

    def size(declaration: Declaration) -> int:
        parts = _local_parts(declaration.shape(spec), shardings.get(declaration.path))
        return sum(math.prod(map(len, part)) for part in parts)

    return Staging(max(map(size, wanted)) * np.dtype(dtype).itemsize)


def read_leaf(
    tensors: Tensors,
    declaration: Declaration,
    spec: ModelSpec,
    dtype: jnp.dtype | type,
    sharding: jax.sharding.Sharding | None,
    staging: Staging,
) -> jax.Array:
    """The stacked parameter as `sharding` spreads it; None: whole, on the default device. Reads none of `staging` once it returns."""
    staging.clear()
    shape = declaration.shape(spec)
    parts = {
        ranges: _read_part(tensors, declaration, spec, ranges, staging.take([len(wanted) for wanted in ranges], np.dtype(dtype)))
        for ranges in _local_parts(shape, sharding)
    }
    if sharding is None:
        (whole,) = parts.values()
        return _settled(jnp.asarray(whole))
    return _settled(jax.make_array_from_callback(shape, sharding, lambda index: parts[_ranges(index, shape)], dtype=np.dtype(dtype)))


def _local_parts(shape: tuple[int, ...], sharding: jax.sharding.Sharding | None) -> tuple[Rectangle, ...]:
    """The rectangles of a parameter that this process's devices hold, each once however many of them hold it."""
    if sharding is None:
        return (tuple(range(length) for length in shape),)
    return tuple(dict.fromkeys(_ranges(index, shape) for index in sharding.addressable_devices_indices_map(shape).values()))


def _ranges(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> Rectangle:
    assert index is not None
    return tuple(range(*place.indices(length)) for place, length in zip(index, shape, strict=True))


def _settled(array: jax.Array) -> jax.Array:
    """The array once it needs numpy's memory no more: transfers run on by themselves, and on a CPU jax may go on using it as its own."""
    on_cpu = all(device.platform == "cpu" for device in array.sharding.device_set)
    return (array.copy() if on_cpu else array).block_until_ready()


def _read_part(tensors: Tensors, declaration: Declaration, spec: ModelSpec, ranges: Rectangle, host: np.ndarray) -> np.ndarray:
    """`host` filled with a rectangle of the parameter, tensor by tensor."""
    depth = len(declaration.stack)
    inner = dict(zip(declaration.axes[depth:], ranges[depth:], strict=True))
    whole = all(len(wanted) == spec.axis_size(axis) for axis, wanted in inner.items())
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
