"""Weights as a decode step reads them fastest: one LayerParams a layer, and on CPUs every matrix in panels (`cpu/packed.py`)."""

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

    head = packed.pack(apart.embed, turned=True) if apart.head is None else _in_panels(apart.head, 1)
    return replace(apart, embed=as_stored(apart.embed), layers=tuple(map(layer, apart.layers)), head=head)


def has_panels(declaration: Declaration) -> bool:
    """Matrices of experts are multiplied group by group (`grouped.py`)."""
    return quantisable(declaration) and "expert" not in declaration.axes


def _in_panels(weight: Weight, inputs: int) -> Weight:
    if isinstance(weight, Quantised):
        return replace(weight, stored=_stored_in_panels(weight.stored, inputs))
    return _stored_in_panels(weight, inputs)


def _stored_in_panels(matrix: jax.Array | packed.Packed, inputs: int) -> jax.Array | packed.Packed:
    return packed.pack(matrix, inputs) if isinstance(matrix, jax.Array) and packed.packable(matrix.dtype) else matrix
