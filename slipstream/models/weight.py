"""A weight matrix and the one way to apply it: plain, quantised by output channel, or with a low-rank adapter beside it.

Letters: n rows, i input features (one or more axes), o output features (one or more axes), r rank.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from slipstream.models.cpu import packed
from slipstream.models.cpu.packed import Packed
from slipstream.models.numerics import FAST, Numerics

Precision = Literal["f32", "bf16", "int8", "fp8"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """A matrix in eight bits with one scale an output channel: value = stored * scale. Stacked ones have leading axes in both."""

    stored: jax.Array | Packed  # int8 or float8_e4m3fn [..., i, o]
    scale: jax.Array  # float32 [..., o]

    @property
    def shape(self) -> tuple[int, ...]:
        assert isinstance(self.stored, jax.Array), "packed matrices know their outputs alone"
        return self.stored.shape


Weight: TypeAlias = jax.Array | Quantised | Packed


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A low-rank addition to one matrix, down @ up (Hu et al. 2021, arXiv 2106.09685); alpha / r is folded in by `project`."""

    down: jax.Array  # [i, r]
    up: jax.Array  # [r, o]
    scale: float = field(metadata={"static": True})  # alpha / r; no array, so that nothing trains or decays it


def project(
    x: jax.Array, weight: Weight, inputs: int = 1, adapter: Adapter | None = None, turned: bool = False, numerics: Numerics = FAST
) -> jax.Array:
    """x [n, i] times weight [i, o], where i are the weight's first `inputs` axes, in x's dtype; plus the adapter's share.

    `turned`: the weight is a matrix that lies as [o, i], and not quantised. A quantised weight is widened to x's dtype, exact for int8
    in bfloat16, and the scale is applied to the product.
    """
    if isinstance(weight, Packed):
        out = numerics.seal(_by_panels(x, weight, inputs).astype(x.dtype))
    elif isinstance(weight, Quantised):
        if isinstance(weight.stored, Packed):
            product = _by_panels(x, weight.stored, inputs)
        else:
            product = _contract(x, weight.stored.astype(x.dtype), inputs, numerics).astype(jnp.float32)
        out = numerics.seal((product * weight.scale).astype(x.dtype))
    else:
        wide = weight.astype(x.dtype)
        out = numerics.product(x, wide, turned) if turned else _contract(x, wide, inputs, numerics)
    if adapter is None:
        return out
    low = _contract(x, adapter.down.astype(x.dtype), inputs, numerics)
    high = _contract(low, adapter.up.astype(x.dtype), 1, numerics)
    return numerics.seal(out + numerics.seal(high * jnp.asarray(adapter.scale, x.dtype)))


def _contract(x: jax.Array, weight: jax.Array, inputs: int, numerics: Numerics) -> jax.Array:
    """One flat matrix product: XLA CPU picks slower kernels for products over several axes."""
    rows, ins, outs = x.shape[: x.ndim - inputs], weight.shape[:inputs], weight.shape[inputs:]
    flat = numerics.product(x.reshape(*rows, math.prod(ins)), weight.reshape(math.prod(ins), math.prod(outs)))
    return flat.reshape(*rows, *outs)


def _by_panels(x: jax.Array, weight: Packed, inputs: int) -> jax.Array:
    """In float32."""
    rows = x.shape[: x.ndim - inputs]
    return packed.product(x.reshape(*rows, -1), weight).reshape(*rows, *weight.outputs)
