"""Weights in fewer bits for samplers: bfloat16, or eight bits with one scale an output channel. Activations stay bfloat16.

Matrices of layers and an untied output are quantised; embeddings, norms, biases and routers are rounded to bfloat16.
"""

import jax
import jax.numpy as jnp

from slipstream.models.cpu import packed
from slipstream.models.cpu.compiled import tiles_here
from slipstream.models.parameters import Declaration, Params, declarations, from_leaves, leaf
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision, Quantised

_EIGHT_BITS: dict[Precision, tuple[jnp.dtype | type, float]] = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}
COMPUTE: dict[Precision, jnp.dtype | type] = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.bfloat16, "fp8": jnp.bfloat16}


def at_precision(params: Params, spec: ModelSpec, precision: Precision) -> Params:
    """Stacked parameters as a sampler of this precision holds them."""

    def convert(declaration: Declaration) -> jax.Array | Quantised:
        value = leaf(params, declaration.path)
        if precision in _EIGHT_BITS and quantisable(declaration):
            first = len(declaration.stack)
            return quantise(value, tuple(range(first, first + len(declaration.fan_in))), precision)
        return value.astype(COMPUTE[precision])

    return from_leaves({declaration.path: convert(declaration) for declaration in declarations(spec)})


def arithmetic(precision: Precision, exact: bool) -> str:
    """Device kind / precision [/ exact]. Exact ones of equal names give equal bits; others name the kind of device alone."""
    kind = jax.default_backend()
    if exact and precision != "f32" and packed.available() and tiles_here():  # other sums than where there are no tiles
        kind += "-amx"
    return f"{kind}/{precision}" + ("/exact" if exact else "")


def quantisable(declaration: Declaration) -> bool:
    """Whether a parameter is a matrix applied by `project`."""
    return bool(declaration.fan_in) and declaration.path[-1] not in ("embed", "router")


def quantise(weight: jax.Array, inputs: tuple[int, ...], precision: Precision) -> Quantised:
    """`weight` in eight bits with a scale for each index of the axes that are not `inputs`.

    Symmetric: a channel's largest magnitude becomes the largest number of the type. A channel of zeros stays zeros.
    """
    dtype, largest = _EIGHT_BITS[precision]
    wide = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=inputs, keepdims=True) / largest
    scaled = wide / jnp.where(scale == 0, 1.0, scale)
    stored = (jnp.round(scaled) if precision == "int8" else scaled).astype(dtype)
    return Quantised(stored=stored, scale=scale.squeeze(inputs))
