"""The product of rows with a packed matrix, as a kernel.

A panel holds `PANEL` neighbouring columns of a matrix, input after input, so weights are read once and in the order in which they lie
(Goto and van de Geijn 2008, Anatomy of High-Performance Matrix Multiplication, with the matrix packed ahead of time).

The bits of a result depend on its row of x, its column of the matrix and the number of inputs alone: inputs are summed one after
another (`tile.py`) in blocks of about `BLOCK`, and the blocks are added up in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Structure, Type, Value, counting, element, f32, function, i64, least, most, nothing, pointer
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.tile import STORED, Registers, Tile, by_tiles, store_as, widened

PANEL = 32  # columns
BLOCK = 512  # inputs that are summed in registers: their weights stay in the first two caches
ROW_CHUNK = 192  # rows that meet all panels before the next rows do: so many stay in the second cache
AHEAD = 16  # inputs; their weights are asked for before they are needed
_LANES = 16  # results that are scaled and rounded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a kernel of products takes and gives."""

    stored: str  # type of the matrices
    out: str = "float32"  # of the results: they are rounded once, from float32
    matrices: int = 1  # that the rows meet in one call
    scaled: bool = False  # results are multiplied by a number a column before they are rounded

    @property
    def name(self) -> str:
        return f"{self.stored}_{self.out}_{self.matrices}" + ("_scaled" if self.scaled else "")

    @property
    def direct(self) -> bool:
        """Sums are results: they are left where they are, in whole panels."""
        return self.out == "float32" and not self.scaled


def product_kernel(form: Form, held: Registers) -> Kernel:
    """x float32 [rows, width] and matrices [panels, width, PANEL] -> a result for each; see `kernel_of`."""

    def multiply(module: ir.Module, builder: Builder, own: "Share", out: Value, stride: Value) -> None:
        builder.call(_define_panel(module, form.stored, held), [own.x, own.width, own.rows, own.weights, out, stride])

    return kernel_of(f"product_{form.name}", form, f32, STORED[form.stored], multiply)


Multiply = Callable[[ir.Module, Builder, "Share", Value, Value], None]


def kernel_of(name: str, form: Form, of_x: Type, of_weights: Type, multiply: Multiply) -> Kernel:
    """x [rows, width], matrices in panels and, where `form` is scaled, a float32 [columns] of each -> results [rows, columns] of the type
    `form.out`; direct ones [rows, panels PANEL]. A unit is one panel times a chunk of rows: `multiply(module, builder, share, out, stride)`
    stores its float32 sums.
    """
    names = ["weights", "panels", "columns", "out", *(["scale"] if form.scaled else [])]
    job: dict[str, Type] = {"x": pointer, "rows": i64, "width": i64}
    for index in range(form.matrices):
        job |= {f"{name}_{index}": i64 if name in ("panels", "columns") else pointer for name in names}
    arguments = 1 + form.matrices * (2 if form.scaled else 1)

    def define_unit(module: ir.Module, structure: Structure) -> ir.Function:
        made, builder = function(module, "unit", nothing, pointer, i64)
        own = _share_of(builder, structure, *made.args, form=form, of_x=of_x, of_weights=of_weights)
        if form.direct:
            multiply(module, builder, own, own.out, own.columns)
        else:
            sums = builder.alloca(ir.ArrayType(f32, ROW_CHUNK * PANEL))
            sums.align = 4 * _LANES
            multiply(module, builder, own, sums, i64(PANEL))
            builder.call(_define_finish(module, form), [sums, own.rows, own.number, own.scale, own.out, own.columns])
        builder.ret_void()
        return made

    return Kernel(name=name, arguments=arguments, job=job, read=partial(_read, form=form), define_unit=define_unit)


def _read(call: Call, *, form: Form) -> tuple[dict[str, Value], Value, Value]:
    builder, count = call.builder, form.matrices
    rows, width, total = call.length(0, 0), call.length(0, 1), i64(0)
    fields = {"x": call.data(0), "rows": rows, "width": width}
    for index in range(count):
        weights, out = 1 + index, 1 + (2 if form.scaled else 1) * count + index
        panels = call.length(weights, 0)
        own = {"weights": call.data(weights), "panels": panels, "columns": call.length(out, 1), "out": call.data(out)}
        own |= {"scale": call.data(1 + count + index)} if form.scaled else {}
        fields |= {f"{name}_{index}": value for name, value in own.items()}
        total = builder.add(total, panels)
    chunks = builder.udiv(builder.add(rows, i64(ROW_CHUNK - 1)), i64(ROW_CHUNK))
    return fields, builder.mul(total, chunks), builder.mul(builder.mul(rows, width), builder.mul(total, i64(PANEL)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one unit multiplies: x [rows, width] by one panel, to the first `number` (at most PANEL) of `columns` columns of out."""

    x: Value
    width: Value
    rows: Value
    weights: Value
    out: Value
    columns: Value
    number: Value
    scale: Value


def _share_of(builder: Builder, job: Structure, given: Value, index: Value, *, form: Form, of_x: Type, of_weights: Type) -> Share:
    """Of the unit `index`: chunk after chunk of rows, in each matrix after matrix."""

    def field(name: str) -> Value:
        return job.get(builder, given, name)

    total = field("panels_0")
    for matrix in range(1, form.matrices):
        total = builder.add(total, field(f"panels_{matrix}"))
    first, panel = builder.mul(builder.udiv(index, total), i64(ROW_CHUNK)), builder.urem(index, total)
    names = ("weights", "columns", "out", "scale" if form.scaled else "out")
    weights, columns, out, scale = (field(f"{name}_0") for name in names)
    until = field("panels_0")
    own_panel = panel
    for matrix in range(1, form.matrices):
        here = builder.icmp_unsigned(">=", panel, until)
        mine = (field(f"{name}_{matrix}") for name in names)
        weights, columns, out, scale = (
            builder.select(here, own, other) for own, other in zip(mine, (weights, columns, out, scale), strict=True)
        )
        own_panel = builder.select(here, builder.sub(panel, until), own_panel)
        until = builder.add(until, field(f"panels_{matrix}"))
    width, column = field("width"), builder.mul(own_panel, i64(PANEL))
    return Share(
        x=element(builder, of_x, field("x"), builder.mul(first, width)),
        width=width,
        rows=least(builder, builder.sub(field("rows"), first), i64(ROW_CHUNK)),
        weights=element(builder, of_weights, weights, builder.mul(own_panel, builder.mul(width, i64(PANEL)))),
        out=element(builder, STORED[form.out], out, builder.add(builder.mul(first, columns), column)),
        columns=columns,
        number=least(builder, builder.sub(columns, column), i64(PANEL)),
        scale=element(builder, f32, scale, column) if form.scaled else scale,
    )


def _define_finish(module: ir.Module, form: Form) -> ir.Function:
    """`void finish(sums, rows, number, scale, out, columns)`: out [rows, columns], its first `number` columns, of sums [rows, PANEL]."""
    made, builder = function(module, "finish", nothing, pointer, i64, i64, pointer, pointer, i64)
    sums, rows, number, scale, out, columns = made.args

    def use(row: Value, column: Value, lanes: int) -> None:
        at = element(builder, f32, sums, builder.add(builder.mul(row, i64(PANEL)), column))
        found = widened(builder, "float32", at, lanes)
        if form.scaled:
            found = builder.fmul(found, widened(builder, "float32", element(builder, f32, scale, column), lanes))
        store_as(builder, form.out, found, element(builder, STORED[form.out], out, builder.add(builder.mul(row, columns), column)))

    whole = builder.sub(number, builder.urem(number, i64(_LANES)))
    with counting(builder, i64(0), rows) as row:
        with counting(builder, i64(0), whole, _LANES) as some:
            use(row.index, some.index, _LANES)
        with counting(builder, whole, number) as one:
            use(row.index, one.index, 1)
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
