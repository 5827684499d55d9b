"""Rotary positions as a kernel: the pairs of each head of a row turned by the row's angles; see `layers.rotate`."""

from functools import partial

from slipstream.models.cpu.by_row import Row, row_kernel
from slipstream.models.cpu.emit import counting, i64
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.tile import Registers

_COST = 256  # multiplications that turning a head counts for
HALF_LANES = 8  # widths of heads are multiples of twice as many: a half is looked at together with the other


def turn_kernel(stored: str, held: Registers) -> Kernel:
    """x [n, h, k] of the type `stored`, cos and sin float32 [n, k / 2] -> turned x."""
    del held  # vectors are as wide everywhere
    return row_kernel(
        f"turn_{stored}", ("x", "cos", "sin"), ("turned",), {"heads": (0, 1), "width": (0, 2)}, _COST, partial(_define, stored)
    )


def _define(stored: str, row: Row) -> None:
    builder, heads, width = row.builder, row.lengths["heads"], row.lengths["width"]
    half = builder.udiv(width, i64(2))
    angles, own = builder.mul(row.index, half), builder.mul(row.index, builder.mul(heads, width))
    with counting(builder, i64(0), heads) as head:
        start = builder.add(own, builder.mul(head.index, width))
        with counting(builder, i64(0), half, HALF_LANES) as loop:
            cos, sin = (row.load(name, "float32", builder.add(angles, loop.index), HALF_LANES) for name in ("cos", "sin"))
            at = [builder.add(start, loop.index), builder.add(builder.add(start, half), loop.index)]
            first, second = (row.load("x", stored, place, HALF_LANES) for place in at)
            turned = (
                builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin)),
                builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin)),
            )
            for place, vector in zip(at, turned, strict=True):
                row.store("turned", stored, place, vector)
