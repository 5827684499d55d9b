"""Root-mean-square norms as a kernel, of rows or of the sums of two; see `layers.rms_norm`.

A sum of squares runs in `LANES` lanes, each product rounded once with its addition, and the lanes are added up in a tree: whatever the
processor, the same bits.
"""

from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from slipstream.models.cpu.by_row import LANES, Row, row_kernel
from slipstream.models.cpu.emit import counting, declared, f32, folded, i64
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.tile import Registers, spread_out

_COST = 2  # multiplications that a number counts for


@dataclass(frozen=True, slots=True, kw_only=True)
class NormForm:
    """Of rows of the type `stored`; of the sum of two, rounded to it, where `added`; times 1 + weight where `plus_one`."""

    stored: str
    added: bool
    plus_one: bool

    @property
    def name(self) -> str:
        return f"norm_{self.stored}" + "_added" * self.added + "_plus_one" * self.plus_one


def norm_kernel(form: NormForm, held: Registers) -> Kernel:
    """x [n, d] (and y), weight [d], all of the type `form.stored`, eps float32 [] -> normed [n, d] (and x + y)."""
    del held  # vectors are as wide everywhere
    parts = ("x", "y") if form.added else ("x",)
    outputs = ("normed", "total") if form.added else ("normed",)
    return row_kernel(form.name, (*parts, "weight", "eps"), outputs, {"width": (0, 1)}, _COST, partial(_define, form))


def _define(form: NormForm, row: Row) -> None:
    builder, stored, width, vector = row.builder, form.stored, row.lengths["width"], ir.VectorType(f32, LANES)
    fused = declared(row.module, f"llvm.fma.v{LANES}f32", vector, vector, vector, vector)
    start, x = builder.mul(row.index, width), "total" if form.added else "x"
    with counting(builder, i64(0), width, LANES, carried=[ir.Constant(vector, [0.0] * LANES)]) as loop:
        place = builder.add(start, loop.index)
        if form.added:
            row.store(x, stored, place, builder.fadd(row.load("x", stored, place), row.load("y", stored, place)))
        number = row.load(x, stored, place)
        loop.then = [builder.call(fused, [number, number, loop.now[0]])]
    mean = builder.fdiv(folded(builder, loop.now[0], builder.fadd), builder.uitofp(width, f32))
    root = builder.call(declared(row.module, "llvm.sqrt.f32", f32, f32), [builder.fadd(mean, row.number("eps"))])
    scale = spread_out(builder, builder.fdiv(f32(1.0), root), LANES)
    with counting(builder, i64(0), width, LANES) as loop:
        place = builder.add(start, loop.index)
        scaled, factor = builder.fmul(row.load(x, stored, place), scale), row.load("weight", stored, loop.index)
        if form.plus_one:
            factor = builder.fadd(factor, ir.Constant(vector, [1.0] * LANES))
        else:  # rounded before it meets its weight
            row.store("normed", stored, place, scaled)
            scaled = row.load("normed", stored, place)
        row.store("normed", stored, place, builder.fmul(scaled, factor))
