"""A few rows times a few columns, in registers: what every kernel here is made of.

Products are added one input after another, each rounded once with its addition (fused): how many rows and columns stand in
registers is the processor's matter and changes no bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from slipstream.models.cpu.emit import (
    Builder,
    Type,
    Value,
    Vectors,
    counting,
    declared,
    element,
    f32,
    function,
    i1,
    i8,
    i16,
    i32,
    i64,
    nothing,
    pointer,
)

STORED = {"float32": f32, "bfloat16": i16, "int8": i8}  # what the columns may be of
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class Registers:
    """What a tile holds in a processor's registers: `rows` x `vectors` sums of `lanes` floats."""

    lanes: int
    vectors: int
    rows: int

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors


def registers_of(features: dict[str, bool], architecture: str) -> Registers | None:
    """For a processor with these features, by LLVM's names; None where it cannot multiply and add in one rounding."""
    if features.get("avx512f"):
        return Registers(lanes=16, vectors=2, rows=12)
    if features.get("avx2") and features.get("fma"):
        return Registers(lanes=8, vectors=2, rows=6)
    return Registers(lanes=4, vectors=4, rows=6) if architecture in ("aarch64", "arm64") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A function `void (x, x_stride, start, end, columns, column_stride, out, out_stride, add)`.

    out [rows, width] becomes (`add`) or grows by the sum over inputs start .. end of x[row, input] * columns[input, column].
    Strides are in elements, of rows of x and out and of inputs of `columns`, whose elements are of the type `stored`.
    """

    stored: str
    rows: int
    width: int
    lanes: int
    ahead: int = 0  # inputs whose columns are asked for before they are needed; 0: none

    def define(self, module: ir.Module) -> ir.Function:
        arguments = (pointer, i64, i64, i64, pointer, i64, pointer, i64, i1)
        made, builder = function(module, f"tile_{self.stored}_{self.rows}_{self.width}", nothing, *arguments)
        x, x_stride, start, end, columns, column_stride, out, out_stride, add = made.args
        vector = ir.VectorType(f32, self.lanes)
        zeros = ir.Constant(vector, [0.0] * self.lanes)
        fused = declared(module, f"llvm.fma.v{self.lanes}f32", vector, vector, vector, vector)
        kind, places = STORED[self.stored], range(0, self.width, self.lanes)
        cells = [(row, place) for row in range(self.rows) for place in places]
        own_x = [element(builder, f32, x, builder.mul(x_stride, i64(row))) for row in range(self.rows)]
        with counting(builder, start, end, carried=[zeros] * len(cells)) as loop:
            at = element(builder, kind, columns, builder.mul(loop.index, column_stride))
            if self.ahead:
                ask_for(
                    module, builder, element(builder, kind, at, builder.mul(column_stride, i64(self.ahead))), self.width * size_of(kind)
                )
            wide = {place: widened(builder, self.stored, element(builder, kind, at, i64(place)), self.lanes) for place in places}
            spread = [spread_out(builder, builder.load(element(builder, f32, own, loop.index), typ=f32), self.lanes) for own in own_x]
            loop.then = [builder.call(fused, [spread[row], wide[place], now]) for (row, place), now in zip(cells, loop.now, strict=True)]
        targets = [element(builder, f32, out, builder.add(builder.mul(out_stride, i64(row)), i64(place))) for row, place in cells]
        with builder.if_else(add) as (then, otherwise):
            with then:
                for target, total in zip(targets, loop.now, strict=True):
                    builder.store(builder.fadd(builder.load(target, align=4, typ=vector), total), target, align=4)
            with otherwise:  # never reads what it overwrites: reading a fresh page maps one of zeros, whose copying stops all threads
                for target, total in zip(targets, loop.now, strict=True):
                    builder.store(total, target, align=4)
        builder.ret_void()
        return made


def by_tiles(builder: Builder, rows: Value, sizes: Sequence[int], use: Callable[[Value, int], None]) -> None:
    """`use(first row, size)` for all `rows`, in tiles as large as fit."""
    done: Value = i64(0)
    for size in sorted(sizes, reverse=True):
        until = builder.sub(rows, builder.urem(builder.sub(rows, done), i64(size)))
        with counting(builder, done, until, size) as loop:
            use(loop.index, size)
        done = until


def spread_out(builder: Builder, number: Value, lanes: int) -> Value:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    alone = builder.insert_element(undefined, number, i32(0))
    return builder.shuffle_vector(alone, undefined, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))


def size_of(kind: Type) -> int:
    """Bytes of a number."""
    return 4 if kind is f32 else kind.width // 8


def widened(builder: Builder, stored: str, at: Value, lanes: int) -> Value:
    """Stored numbers, from an address on, as float32, which holds them all."""
    kind, wide = STORED[stored], ir.VectorType(i32, lanes)
    loaded = builder.load(at, align=size_of(kind), typ=ir.VectorType(kind, lanes))
    if stored == "float32":
        return loaded
    if stored == "int8":
        return builder.sitofp(builder.sext(loaded, wide), ir.VectorType(f32, lanes))
    upper_half = ir.Constant(wide, [16] * lanes)  # which is what bfloat16 is of float32
    return builder.bitcast(builder.shl(builder.zext(loaded, wide), upper_half), ir.VectorType(f32, lanes))


def store_as(builder: Builder, stored: str, numbers: Value, at: Value) -> None:
    """A vector of float32 to an address, as it is stored: bfloat16 is the nearest one, of two as near the even one. NaN stays NaN."""
    if stored == "bfloat16":
        vectors = Vectors(builder, numbers.type.count)
        bits, sixteen = builder.bitcast(numbers, vectors.whole), vectors.integer(16)
        odd = builder.and_(builder.lshr(bits, sixteen), vectors.integer(1))
        nearest = builder.add(bits, builder.add(odd, vectors.integer(0x7FFF)))
        quiet = builder.or_(bits, vectors.integer(0x400000))  # what says that it is no number must not be in the half that is dropped
        upper = builder.lshr(builder.select(builder.fcmp_unordered("uno", numbers, numbers), quiet, nearest), sixteen)
        numbers = builder.trunc(upper, ir.VectorType(i16, vectors.lanes))
    builder.store(numbers, at, align=size_of(STORED[stored]))


def ask_for(module: ir.Module, builder: Builder, address: Value, size: int) -> None:
    """Bytes from an address on, to be in the caches when they are read."""
    fetch = declared(module, "llvm.prefetch.p0", nothing, pointer, i32, i32, i32)
    for offset in range(0, size, _LINE):
        builder.call(fetch, [element(builder, i8, address, i64(offset)), i32(0), i32(3), i32(1)])  # to read, for all caches, data
