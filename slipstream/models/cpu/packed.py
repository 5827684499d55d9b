"""A matrix laid out in panels, and its product with rows: our own code where the device is a CPU, XLA's elsewhere.

XLA's products on a CPU pack the matrix anew at every call, which pays for hundreds of rows and not for the few of a decode step.
Weights that are packed once are read at the speed of memory, bfloat16 and int8 ones too: they are widened in registers.
"""

import math
import os
from dataclasses import dataclass, field
from functools import cache

import jax
import jax.numpy as jnp

from slipstream.core.errors import UsageError
from slipstream.models.cpu.compiled import held_here, known
from slipstream.models.cpu.product import PANEL, product_kernel
from slipstream.models.cpu.tile import STORED


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A matrix [i, o] in panels of neighbouring columns, the last one filled up with zeros. o may stand for several axes."""

    panels: jax.Array  # float32, bfloat16 or int8 [panel, i, PANEL]
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
    return f"own, {held.rows} rows by {held.columns} columns in registers" if held else "XLA's"


def packable(dtype: jnp.dtype) -> bool:
    """Whether a matrix of this type can be packed."""
    return dtype.name in STORED


def pack(matrix: jax.Array, inputs: int = 1, turned: bool = False) -> Packed:
    """A matrix whose first `inputs` axes are summed over; `turned`: it lies as [o, i]."""
    outputs = matrix.shape[:1] if turned else matrix.shape[inputs:]
    columns = math.prod(outputs)
    if turned:
        filled = jnp.pad(matrix, ((0, -columns % PANEL), (0, 0)))
        return Packed(panels=filled.reshape(-1, PANEL, matrix.shape[1]).transpose(0, 2, 1), outputs=outputs)
    flat = matrix.reshape(-1, columns)
    filled = jnp.pad(flat, ((0, 0), (0, -columns % PANEL)))
    return Packed(panels=filled.reshape(flat.shape[0], -1, PANEL).transpose(1, 0, 2), outputs=outputs)


def product(x: jax.Array, matrix: Packed) -> jax.Array:
    """x [..., i] times the matrix, float32 [..., o], o flat. Needs `available()`.

    A row's bits depend on the row and the matrix alone; see `product.py`.
    """
    assert available()
    flat = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    panels, columns = matrix.panels, math.prod(matrix.outputs)
    shape = jax.ShapeDtypeStruct((flat.shape[0], panels.shape[0] * PANEL), jnp.float32)
    out = jax.ffi.ffi_call(known(product_kernel, panels.dtype.name), shape)(flat, panels)
    return out[:, :columns].reshape(*x.shape[:-1], columns)
