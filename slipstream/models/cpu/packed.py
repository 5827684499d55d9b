"""A matrix laid out in panels, and its product with rows: our own code where the device is a CPU, XLA's elsewhere.

XLA's products on a CPU pack the matrix anew at every call, which pays for hundreds of rows and not for the few of a decode step.
Weights that are packed once are read at the speed of memory, bfloat16 and int8 ones too: they are widened in registers.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import jax
import jax.numpy as jnp

from slipstream.core.errors import UsageError
from slipstream.models.cpu import amx
from slipstream.models.cpu.compiled import held_here, known, tiles_here
from slipstream.models.cpu.product import PANEL, Form, product_kernel
from slipstream.models.cpu.tile import STORED


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A matrix [i, o] in panels of neighbouring columns, the last one filled up with zeros. o may stand for several axes.

    float32, bfloat16 or int8 [panel, i, PANEL]; or in pairs of inputs, for `amx.py`: bfloat16 or eight bits [panel, i / 2, PANEL, 2].
    """

    panels: jax.Array
    outputs: tuple[int, ...] = field(metadata={"static": True})  # lengths of the axes of o


@cache
def available() -> bool:
    """Whether products of packed matrices can be had: on CPUs that multiply and add in one rounding.

    Not where the environment variable SLIPSTREAM_PRODUCTS is `xla`: to compare, and to test on a CPU what other devices do.
    """
    wanted = os.environ.get("SLIPSTREAM_PRODUCTS", "own")
    if wanted not in ("own", "xla"):
        raise UsageError(f"SLIPSTREAM_PRODUCTS = {wanted!r}: must be own or xla")
    return wanted == "own" and jax.default_backend() == "cpu" and held_here() is not None


def kind() -> str:
    """Whose products a sampler on this machine uses, in words."""
    held = held_here() if available() else None
    if held is None:
        return "XLA's"
    tiles = ", tiles of bfloat16 (AMX)" if tiles_here() else ""
    return f"own, {held.rows} rows by {held.columns} columns in registers{tiles}"


def packable(dtype: jnp.dtype, inputs: int) -> bool:
    """Whether a matrix of this type and number of inputs can be packed."""
    return dtype.name in STORED or paired(dtype, inputs)


def paired(dtype: jnp.dtype, inputs: int) -> bool:
    """Whether this processor multiplies a matrix of this type and number of inputs fastest in pairs."""
    return dtype.name in amx.STORED and inputs % amx.INPUTS == 0 and tiles_here()


def pack(matrix: jax.Array, inputs: int = 1, *, turned: bool = False, in_pairs: bool | None = None) -> Packed:
    """A matrix whose first `inputs` axes are summed over; `turned`: it lies as [o, i]. `in_pairs`: default as `paired` says."""
    outputs = matrix.shape[:1] if turned else matrix.shape[inputs:]
    width, columns = matrix.size // math.prod(outputs), math.prod(outputs)
    flat = matrix if turned else matrix.reshape(width, columns)
    filled = jnp.pad(flat, ((0, -columns % PANEL), (0, 0)) if turned else ((0, 0), (0, -columns % PANEL)))
    by_panels = filled.reshape(-1, PANEL, width) if turned else filled.reshape(width, -1, PANEL).transpose(1, 2, 0)
    if paired(matrix.dtype, width) if in_pairs is None else in_pairs:
        return Packed(panels=by_panels.reshape(-1, PANEL, width // 2, 2).transpose(0, 2, 1, 3), outputs=outputs)
    return Packed(panels=by_panels.transpose(0, 2, 1), outputs=outputs)


def product(x: jax.Array, matrix: Packed, dtype: jnp.dtype | type = jnp.float32) -> jax.Array:
    """x [..., i] times the matrix, [..., o], o flat; see `products`."""
    return products(x, [matrix], dtype)[0]


def products(
    x: jax.Array, matrices: Sequence[Packed], dtype: jnp.dtype | type, scales: Sequence[jax.Array] | None = None
) -> list[jax.Array]:
    """x [..., i] times each matrix, [..., o] in `dtype` (float32 or bfloat16), o flat; with `scales` [o], times them. In one call, because
    threads meet at the end of each. Matrices are of one type, all in pairs or none. Needs `available()`. Pairs take x of bfloat16.

    Sums are float32 and rounded once. A row's bits depend on the row and the matrix alone; see `product.py` and `amx.py`.
    """
    assert available()
    flat, first = x.reshape(-1, x.shape[-1]), matrices[0].panels
    form = Form(stored=first.dtype.name, out=jnp.dtype(dtype).name, matrices=len(matrices), scaled=scales is not None)
    if first.ndim == 4:
        assert x.dtype == jnp.bfloat16, x.dtype
        kernel = known(amx.amx_kernel, form)
    else:
        flat, kernel = flat.astype(jnp.float32), known(product_kernel, form)
    columns = [math.prod(matrix.outputs) for matrix in matrices]
    stored = [matrix.panels.shape[0] * PANEL if form.direct else own for matrix, own in zip(matrices, columns, strict=True)]
    shapes = tuple(jax.ShapeDtypeStruct((flat.shape[0], own), dtype) for own in stored)
    found = jax.ffi.ffi_call(kernel, shapes)(flat, *(matrix.panels for matrix in matrices), *(scales or ()))
    return [out[:, :own].reshape(*x.shape[:-1], own) for out, own in zip(found, columns, strict=True)]
