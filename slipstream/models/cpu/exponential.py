"""exp of a vector of numbers up to 0, to about one unit in the last place, with the same bits on every processor."""

import math

import numpy as np
from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Value, declared, f32, function, i32

LOWEST = -87.0  # below it the result is 0; exp(-87) is nearly the smallest normal number
_DEGREE = 7  # of the Taylor polynomial; within half of log 2 its error is below a unit in the last place
_SHIFT = 12_582_912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the lowest bits
_LOG2_HIGH, _LOG2_LOW = 0.693145751953125, 1.42860682030941723212e-6  # log 2 in two parts, the first of few bits (Cody and Waite 1980)
_ONE = 0x3F800000  # the bits of 1.0


def define_exponential(module: ir.Module, lanes: int) -> ir.Function:
    """`<lanes x float> exponential(<lanes x float>)`; exp(0) is 1 exactly, NaN stays NaN."""
    vector, whole = ir.VectorType(f32, lanes), ir.VectorType(i32, lanes)
    made, builder = function(module, "exponential", vector, vector)
    (x,) = made.args
    fused = declared(module, f"llvm.fma.v{lanes}f32", vector, vector, vector, vector)

    def number(value: float) -> Value:
        return ir.Constant(vector, [_rounded(value)] * lanes)

    def fma(a: Value, b: Value, c: Value) -> Value:
        return builder.call(fused, [a, b, c])

    shifted = fma(x, number(1 / math.log(2)), number(_SHIFT))
    halvings = builder.fsub(shifted, number(_SHIFT))
    rest = fma(halvings, number(-_LOG2_LOW), fma(halvings, number(-_LOG2_HIGH), x))
    found = number(1 / math.factorial(_DEGREE))
    for power in reversed(range(_DEGREE)):
        found = fma(found, rest, number(1 / math.factorial(power)))
    bits = builder.shl(builder.bitcast(shifted, whole), ir.Constant(whole, [23] * lanes))
    scaled = builder.fmul(found, builder.bitcast(builder.add(bits, ir.Constant(whole, [_ONE] * lanes)), vector))
    builder.ret(builder.select(builder.fcmp_ordered("<", x, number(LOWEST)), number(0.0), scaled))
    return made


def halved(builder: Builder, vector: Value, lanes: int) -> tuple[Value, Value]:
    """The two halves of a vector."""
    half = lanes // 2
    places = [ir.Constant(ir.VectorType(i32, half), list(range(first, first + half))) for first in (0, half)]
    lower, upper = (builder.shuffle_vector(vector, vector, place) for place in places)
    return lower, upper


def _rounded(value: float) -> float:
    """LLVM takes only constants that float32 holds."""
    return float(np.float32(value))
