"""A gate's activation times what it lets through, as a kernel; see `layers.gated`."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from llvmlite import ir

from slipstream.models.cpu.by_row import LANES, Row, row_kernel
from slipstream.models.cpu.emit import Value, counting, f32, i64
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.hyperbolic import define_logistic, define_tanh
from slipstream.models.cpu.tile import Registers

_COST = 32  # multiplications that an activation counts for


@dataclass(frozen=True, slots=True, kw_only=True)
class GateForm:
    """Of rows of the type `stored`; the activation as in `layers.activate`."""

    stored: str
    activation: str

    @property
    def name(self) -> str:
        return f"gate_{self.stored}_{self.activation}"


def gate_kernel(form: GateForm, held: Registers) -> Kernel:
    """gate and up [n, f] of the type `form.stored` -> gated [n, f]; float32 in between, rounded once."""
    del held  # vectors are as wide everywhere
    return row_kernel(form.name, ("gate", "up"), ("gated",), {"width": (0, 1)}, _COST, partial(_define, form))


def _define(form: GateForm, row: Row) -> None:
    builder, width = row.builder, row.lengths["width"]
    start = builder.mul(row.index, width)
    with counting(builder, i64(0), width, LANES) as loop:
        place = builder.add(start, loop.index)
        gate, up = (row.load(name, form.stored, place) for name in ("gate", "up"))
        row.store("gated", form.stored, place, builder.fmul(_activated(form.activation, row, gate), up))


def _activated(activation: str, row: Row, x: Value) -> Value:
    builder = row.builder
    if activation == "silu":
        return builder.fmul(x, builder.call(define_logistic(row.module, LANES), [x]))
    assert activation == "gelu_tanh", activation

    def number(value: float) -> Value:
        return ir.Constant(ir.VectorType(f32, LANES), [float(np.float32(value))] * LANES)

    cube = builder.fmul(x, builder.fmul(x, x))
    inner = builder.fmul(number(math.sqrt(2 / math.pi)), builder.fadd(x, builder.fmul(number(0.044715), cube)))
    raised = builder.fadd(number(1.0), builder.call(define_tanh(row.module, LANES), [inner]))
    return builder.fmul(builder.fmul(number(0.5), x), raised)
