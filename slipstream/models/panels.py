"""Weights as a decode step reads them fastest: one LayerParams a layer, and on CPUs every matrix in panels (`cpu/packed.py`)."""

import math
from dataclasses import replace
from functools import partial

import jax

from slipstream.models.attention.paged import as_stored
from slipstream.models.cpu import packed
from slipstream.models.parameters import Declaration, LayerParams, Params, declarations, unstack
from slipstream.models.quant import quantisable
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Quantised, Weight


def laid_out(params: Params, spec: ModelSpec) -> Params:
    """Stacked parameters, taken apart and packed. A tied embedding is packed as an output matrix, and stays for looking tokens up.

    One of bfloat16 stays as its bits, because XLA CPU widens the whole table to look up a few rows.
    """
    return _packed(params, spec=spec) if packed.available() else unstack(params)


@partial(jax.jit, static_argnames=("spec",))
def _packed(params: Params, *, spec: ModelSpec) -> Params:
    apart = unstack(params)
    assert isinstance(apart.layers, tuple)
    of_layers = [one for one in declarations(spec) if one.path[0] == "layers" and has_panels(one)]

    def layer(params: LayerParams) -> LayerParams:
        return replace(params, **{one.path[1]: _in_panels(getattr(params, one.path[1]), len(one.fan_in)) for one in of_layers})

    head = _in_panels(apart.embed if apart.head is None else apart.head, 1, turned=apart.head is None)
    return replace(apart, embed=as_stored(apart.embed), layers=tuple(map(layer, apart.layers)), head=head)


def has_panels(declaration: Declaration) -> bool:
    """Matrices of experts are multiplied group by group (`grouped.py`)."""
    return quantisable(declaration) and "expert" not in declaration.axes


def _in_panels(weight: Weight, inputs: int, turned: bool = False) -> Weight:
    if isinstance(weight, Quantised):
        assert isinstance(weight.stored, jax.Array)
        return replace(weight, stored=_matrix_in_panels(weight.stored, inputs))
    assert isinstance(weight, jax.Array)
    return _matrix_in_panels(weight, inputs, turned)


def _matrix_in_panels(matrix: jax.Array, inputs: int, turned: bool = False) -> jax.Array | packed.Packed:
    """As it is where nothing of ours multiplies it."""
    width = matrix.shape[1] if turned else math.prod(matrix.shape[:inputs])
    return packed.pack(matrix, inputs, turned=turned) if packed.packable(matrix.dtype, width) else matrix
