"""The product of rows with a packed matrix, as a kernel.

A panel holds `PANEL` neighbouring columns of a matrix, input after input, so weights are read once and in the order in which they lie
(Goto and van de Geijn 2008, Anatomy of High-Performance Matrix Multiplication, with the matrix packed ahead of time).

The bits of a result depend on its row of x, its column of the matrix and the number of inputs alone: inputs are summed one after
another (`tile.py`) in blocks of about `BLOCK`, and the blocks are added up in order.
"""

from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Structure, Type, Value, counting, element, f32, function, i64, least, most, nothing, pointer
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.tile import STORED, Registers, Tile, by_tiles

PANEL = 32  # columns
BLOCK = 512  # inputs that are summed in registers: their weights stay in the first two caches
ROW_CHUNK = 192  # rows that meet all panels before the next rows do: so many stay in the second cache
JOB: dict[str, Type] = {"x": pointer, "weights": pointer, "out": pointer, "rows": i64, "width": i64, "panels": i64}
AHEAD = 16  # inputs; their weights are asked for before they are needed


def product_kernel(stored: str, held: Registers) -> Kernel:
    """x float32 [rows, width] and weights [panels, width, PANEL] of the type `stored` -> float32 [rows, panels PANEL].

    A unit is one panel times a chunk of rows.
    """
    return Kernel(
        name=f"product_{stored}", arguments=2, job=JOB, read=read_product, define_unit=partial(_define_unit, stored=stored, held=held)
    )


def read_product(call: Call) -> tuple[dict[str, Value], Value, Value]:
    """`Kernel.read` of x [rows, width] and panels of a matrix."""
    builder = call.builder
    rows, width, panels = call.length(0, 0), call.length(0, 1), call.length(1, 0)
    fields = {"x": call.data(0), "weights": call.data(1), "out": call.data(2), "rows": rows, "width": width, "panels": panels}
    chunks = builder.udiv(builder.add(rows, i64(ROW_CHUNK - 1)), i64(ROW_CHUNK))
    return fields, builder.mul(panels, chunks), builder.mul(builder.mul(rows, width), builder.mul(panels, i64(PANEL)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one unit multiplies: x [rows, width] by one panel, to the first PANEL of `columns` columns of out."""

    x: Value
    width: Value
    rows: Value
    weights: Value
    out: Value
    columns: Value


def share_of(builder: Builder, job: Structure, given: Value, index: Value, *, of_x: Type, of_weights: Type) -> Share:
    """Of the unit `index`, where x and weights are of these types."""
    x, weights, out, rows, width, panels = (job.get(builder, given, name) for name in JOB)
    first, panel = builder.mul(builder.udiv(index, panels), i64(ROW_CHUNK)), builder.urem(index, panels)
    columns = builder.mul(panels, i64(PANEL))
    return Share(
        x=element(builder, of_x, x, builder.mul(first, width)),
        width=width,
        rows=least(builder, builder.sub(rows, first), i64(ROW_CHUNK)),
        weights=element(builder, of_weights, weights, builder.mul(panel, builder.mul(width, i64(PANEL)))),
        out=element(builder, f32, out, builder.add(builder.mul(first, columns), builder.mul(panel, i64(PANEL)))),
        columns=columns,
    )


def _define_unit(module: ir.Module, job: Structure, *, stored: str, held: Registers) -> ir.Function:
    made, builder = function(module, "unit", nothing, pointer, i64)
    own = share_of(builder, job, *made.args, of_x=f32, of_weights=STORED[stored])
    builder.call(_define_panel(module, stored, held), [own.x, own.width, own.rows, own.weights, own.out, own.columns])
    builder.ret_void()
    return made


def _define_panel(module: ir.Module, stored: str, held: Registers) -> ir.Function:
    """`void panel(x, width, rows, weights, out, columns)`: out [rows, columns], its first PANEL columns, of x [rows, width]."""
    made, builder = function(module, "panel", nothing, pointer, i64, i64, pointer, pointer, i64)
    x, width, rows, weights, out, columns = made.args
    sizes = [held.rows, *(size for size in (8, 4, 2, 1) if size < held.rows)]
    tiles = {size: Tile(stored=stored, rows=size, width=held.columns, lanes=held.lanes, ahead=AHEAD).define(module) for size in sizes}
    blocks = most(builder, builder.udiv(builder.add(width, i64(BLOCK // 2)), i64(BLOCK)), i64(1))
    with counting(builder, i64(0), blocks) as block:
        start = builder.udiv(builder.mul(block.index, width), blocks)
        end = builder.udiv(builder.mul(builder.add(block.index, i64(1)), width), blocks)
        add = builder.icmp_unsigned("!=", block.index, i64(0))

        def use(row: Value, size: int) -> None:
            own_x, own_out = (element(builder, f32, array, builder.mul(row, stride)) for array, stride in ((x, width), (out, columns)))
            for offset in range(0, PANEL, held.columns):
                own_weights = element(builder, STORED[stored], weights, i64(offset))
                place = element(builder, f32, own_out, i64(offset))
                builder.call(tiles[size], [own_x, width, start, end, own_weights, i64(PANEL), place, columns, add])

        by_tiles(builder, rows, sizes, use)
    builder.ret_void()
    return made
