"""A weight matrix and the one way to apply it: plain, quantised by output channel, or with a low-rank adapter beside it.

Letters: n rows, i input features (one or more axes), o output features (one or more axes), r rank.
"""

import math
from collections.abc import Sequence
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
    if _packed(weight) is not None:
        out = _by_panels(x, [weight], inputs)[0]
    elif isinstance(weight, Quantised):
        assert isinstance(weight.stored, jax.Array)
        product = _contract(x, weight.stored.astype(x.dtype), inputs, numerics).astype(jnp.float32)
        out = numerics.seal((product * weight.scale).astype(x.dtype))
    else:
        assert isinstance(weight, jax.Array)
        wide = weight.astype(x.dtype)
        out = numerics.product(x, wide, turned) if turned else _contract(x, wide, inputs, numerics)
    return _adapted(out, x, inputs, adapter, numerics)


def project_each(x: jax.Array, weights: Sequence[tuple[Weight, Adapter | None]], numerics: Numerics = FAST) -> list[jax.Array]:
    """`project` of the same rows by several weights: in one call where all are packed alike."""
    matrices = [_packed(weight) for weight, _ in weights]
    kinds = {None if matrix is None else (matrix.panels.dtype, matrix.panels.ndim) for matrix in matrices}
    if None in kinds or len(kinds) > 1:
        return [project(x, weight, adapter=adapter, numerics=numerics) for weight, adapter in weights]
    outs = _by_panels(x, [weight for weight, _ in weights], 1)
    return [_adapted(out, x, 1, adapter, numerics) for out, (_, adapter) in zip(outs, weights, strict=True)]


def _packed(weight: Weight) -> Packed | None:
    stored = weight.stored if isinstance(weight, Quantised) else weight
    return stored if isinstance(stored, Packed) else None


def _adapted(out: jax.Array, x: jax.Array, inputs: int, adapter: Adapter | None, numerics: Numerics) -> jax.Array:
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


def _by_panels(x: jax.Array, weights: Sequence[Weight], inputs: int) -> list[jax.Array]:
    """Of weights that are packed alike."""
    rows = x.shape[: x.ndim - inputs]
    matrices = [matrix for weight in weights if (matrix := _packed(weight)) is not None]
    scales = [weight.scale.reshape(-1) for weight in weights if isinstance(weight, Quantised)]
    found = packed.products(x.reshape(*rows, -1), matrices, x.dtype, scales or None)
    return [out.reshape(*rows, *matrix.outputs) for out, matrix in zip(found, matrices, strict=True)]
