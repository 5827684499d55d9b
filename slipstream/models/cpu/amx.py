"""The product of rows with a packed matrix on processors that multiply tiles of bfloat16 (Intel's AMX), as a kernel.

Many times the speed of `product.py` where weights come from a cache, and the speed of memory where they do not. Both factors are
bfloat16, which weights of eight bits become on the way; sums are float32. A panel holds `PANEL` neighbouring columns of a matrix, two
inputs of a column side by side, as the instruction wants them.

The bits of a result depend on its row of x, its column of the matrix and the number of inputs alone: of `INPUTS` inputs those at even
places are summed one after another, each product rounded once with its addition, and those at odd places by themselves; then both
sums are added, and the result to what came before (Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS). The smallest
numbers (denormal ones) count as zero. So exact numerics on such processors are a class of their own (`quant.arithmetic`).
"""

import ctypes
import sys
from functools import cache, partial

import ml_dtypes  # noqa: F401 - numpy knows float8_e4m3fn by it
import numpy as np
from llvmlite import ir

from slipstream.models.cpu.emit import (
    Builder,
    Value,
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
    least,
    nothing,
    pointer,
)
from slipstream.models.cpu.handler import Kernel
from slipstream.models.cpu.product import PANEL, Form, Share, kernel_of
from slipstream.models.cpu.tile import Registers, ask_for, size_of

STORED = {"bfloat16": i16, "int8": i8, "float8_e4m3fn": i8}  # what the matrix may be of
ROWS = 16  # of a tile
INPUTS = 32  # that one instruction multiplies and adds up
BLOCK = 1024  # inputs whose weights are widened at once, on the stack
AHEAD = 2048  # bytes; weights to be widened are asked for before they are needed
_TILE_BYTES = 64  # of a row of any tile
_BYTES = 64  # in a register
_SHAPES = ir.LiteralStructType([ir.ArrayType(i8, 16), ir.ArrayType(i16, 16), ir.ArrayType(i8, 16)])  # palette; bytes of rows; rows

_SUMS, _X, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)  # tiles: sums by rows and columns, rows of x, columns of the matrix
_ARCH_PRCTL, _ASK_FOR_FEATURE, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: system call, its operation, the feature


@cache
def granted() -> bool:
    """Whether this process may use tiles: Linux wants to be asked, because they make each thread's state larger."""
    return sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _ASK_FOR_FEATURE, _TILE_DATA) == 0


def amx_kernel(form: Form, held: Registers) -> Kernel:
    """x bfloat16 [rows, width] and matrices [panels, width / 2, PANEL, 2] -> a result for each; see `product.kernel_of`.

    The width is a multiple of `INPUTS`. int8 must not be -128.
    """
    assert 4 * held.lanes == _BYTES, "processors with tiles have the widest registers"
    return kernel_of(f"amx_{form.name}", form, i16, STORED[form.stored], partial(_multiply, form.stored))


def _multiply(stored: str, module: ir.Module, builder: Builder, own: Share, out: Value, stride: Value) -> None:
    block = _define_block(module)
    widened = builder.alloca(ir.ArrayType(i16, BLOCK * PANEL)) if stored != "bfloat16" else None
    if widened is not None:
        widened.align = _TILE_BYTES  # so that no row of a tile lies in two cache lines
    with counting(builder, i64(0), own.width, BLOCK) as inputs:
        number = least(builder, builder.sub(own.width, inputs.index), i64(BLOCK))
        here = element(builder, STORED[stored], own.weights, builder.mul(inputs.index, i64(PANEL)))
        if widened is not None:
            builder.call(_define_widen(module, stored), [here, number, widened])
            here = widened
        start, add = element(builder, i16, own.x, inputs.index), builder.icmp_unsigned("!=", inputs.index, i64(0))
        builder.call(block, [start, own.width, own.rows, number, here, out, stride, add])


def _define_widen(module: ir.Module, stored: str) -> ir.Function:
    """`void widen(weights, inputs, out)`: eight bits as bfloat16, which holds them all. Both bytes of a magnitude come from a table."""
    made, builder = function(module, "widen", nothing, pointer, i64, pointer)
    weights, inputs, out = made.args
    of_bytes = ir.VectorType(i8, _BYTES)
    look_up = declared(module, "llvm.x86.avx512.vpermi2var.qi.512", of_bytes, of_bytes, of_bytes, of_bytes)
    numbers = np.arange(2 * _BYTES, dtype=np.int8).view(stored).astype(np.float32).view(np.uint32) >> 16  # the upper half is bfloat16
    lower, upper = ([ir.Constant(of_bytes, part.tolist()) for part in np.split(half, 2)] for half in (numbers & 255, numbers >> 8))
    in_turn = ir.Constant(ir.VectorType(i32, 2 * _BYTES), [place // 2 + _BYTES * (place % 2) for place in range(2 * _BYTES)])
    with counting(builder, i64(0), builder.mul(inputs, i64(PANEL)), _BYTES) as loop:
        number = builder.load(element(builder, i8, weights, loop.index), align=1, typ=of_bytes)
        ask_for(module, builder, element(builder, i8, weights, builder.add(loop.index, i64(AHEAD))), _BYTES)
        sign, magnitude = builder.and_(number, ir.Constant(of_bytes, [128] * _BYTES)), number  # looking up passes over the sign
        if stored == "int8":
            magnitude = builder.call(declared(module, f"llvm.abs.v{_BYTES}i8", of_bytes, of_bytes, i1), [number, i1(0)])
        first = builder.call(look_up, [lower[0], magnitude, lower[1]])
        second = builder.or_(builder.call(look_up, [upper[0], magnitude, upper[1]]), sign)
        builder.store(builder.shuffle_vector(first, second, in_turn), element(builder, i16, out, loop.index), align=2)
    builder.ret_void()
    return made


def _define_block(module: ir.Module) -> ir.Function:
    """`void block(x, x_stride, rows, inputs, weights, out, out_stride, add)`: out [rows, PANEL] becomes or grows by x times weights."""
    made, builder = function(module, "block", nothing, pointer, i64, i64, i64, pointer, pointer, i64, i1)
    x, x_stride, rows, inputs, weights, out, out_stride, add = made.args
    one, two = _define_rows(module, 1), _define_rows(module, 2)

    def multiply(rows_of_x: ir.Function, first: Value) -> None:
        own_x, own_out = element(builder, i16, x, builder.mul(first, x_stride)), element(builder, f32, out, builder.mul(first, out_stride))
        builder.call(rows_of_x, [own_x, x_stride, inputs, weights, own_out, out_stride, add])

    whole = builder.sub(rows, builder.urem(rows, i64(2 * ROWS)))
    with builder.if_then(builder.icmp_unsigned(">", whole, i64(0))):
        _configure(module, builder, i64(ROWS), i64(ROWS))
        with counting(builder, i64(0), whole, 2 * ROWS) as loop:
            multiply(two, loop.index)
    left = builder.sub(rows, whole)
    with builder.if_then(builder.icmp_unsigned(">", left, i64(ROWS))):
        _configure(module, builder, i64(ROWS), builder.sub(left, i64(ROWS)))
        multiply(two, whole)
    with builder.if_then(builder.and_(builder.icmp_unsigned(">", left, i64(0)), builder.icmp_unsigned("<=", left, i64(ROWS)))):
        _configure(module, builder, left, i64(ROWS))
        multiply(one, whole)
    builder.call(declared(module, "llvm.x86.tilerelease", nothing), [])
    builder.ret_void()
    return made


def _configure(module: ir.Module, builder: Builder, first: Value, second: Value) -> None:
    """The shapes of the tiles: rows of x in the first and in the second one, and their sums."""
    rows = {tile: i64(ROWS) for tile in _WEIGHTS}
    for number, x, sums in zip((first, second), _X, _SUMS, strict=True):
        rows |= dict.fromkeys((x, *sums), number)
    with builder.goto_entry_block():
        place = builder.alloca(_SHAPES)
        place.align = 64
    builder.store(ir.Constant(_SHAPES, ([1, *[0] * 15], [_TILE_BYTES] * 8 + [0] * 8, [0] * 16)), place)
    for tile, number in rows.items():
        builder.store(builder.trunc(number, i8), builder.gep(place, [i32(0), i32(2), i32(tile)]))
    builder.call(declared(module, "llvm.x86.ldtilecfg", nothing, pointer), [place])


def _define_rows(module: ir.Module, tiles: int) -> ir.Function:
    """`void rows(x, x_stride, inputs, weights, out, out_stride, add)`: as `block`, the rows of one tile or of two."""
    made, builder = function(module, f"rows_{tiles}", nothing, pointer, i64, i64, pointer, pointer, i64, i1)
    x, x_stride, inputs, weights, out, out_stride, add = made.args
    load, store = (declared(module, f"llvm.x86.{name}64", nothing, i8, pointer, i64) for name in ("tileloadd", "tilestored"))
    zero, multiply = declared(module, "llvm.x86.tilezero", nothing, i8), declared(module, "llvm.x86.tdpbf16ps", nothing, i8, i8, i8)
    out_bytes, x_bytes = builder.mul(out_stride, i64(size_of(f32))), builder.mul(x_stride, i64(size_of(i16)))
    own_x = [element(builder, i16, x, builder.mul(x_stride, i64(ROWS * tile))) for tile in range(tiles)]
    sums = [
        (_SUMS[tile][half], element(builder, f32, out, builder.add(builder.mul(out_stride, i64(ROWS * tile)), i64(ROWS * half))))
        for tile in range(tiles)
        for half in range(2)
    ]
    with builder.if_else(add) as (then, otherwise):
        with then:
            for tile, place in sums:
                builder.call(load, [i8(tile), place, out_bytes])
        with otherwise:
            for tile, _ in sums:
                builder.call(zero, [i8(tile)])
    with counting(builder, i64(0), inputs, INPUTS) as loop:
        at = element(builder, i16, weights, builder.mul(loop.index, i64(PANEL)))
        for half in range(2):
            builder.call(load, [i8(_WEIGHTS[half]), element(builder, i16, at, i64(2 * ROWS * half)), i64(2 * PANEL * size_of(i16))])
        for tile in range(tiles):
            builder.call(load, [i8(_X[tile]), element(builder, i16, own_x[tile], loop.index), x_bytes])
            for half in range(2):
                builder.call(multiply, [i8(_SUMS[tile][half]), i8(_X[tile]), i8(_WEIGHTS[half])])
    for tile, place in sums:
        builder.call(store, [i8(tile), place, out_bytes])
    builder.ret_void()
    return made
