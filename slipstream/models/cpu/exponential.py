"""exp of a vector of numbers up to 0, to about one unit in the last place, with the same bits on every processor."""

import math

from llvmlite import ir

from slipstream.models.cpu.emit import Builder, Value, Vectors, f32, function, i32

LOWEST = -87.0  # below it the result is 0; exp(-87) is nearly the smallest normal number
_DEGREE = 7  # of the Taylor polynomial; within half of log 2 its error is below a unit in the last place
_SHIFT = 12_582_912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the lowest bits
_LOG2_HIGH, _LOG2_LOW = 0.693145751953125, 1.42860682030941723212e-6  # log 2 in two parts, the first of few bits (Cody and Waite 1980)
_ONE = 0x3F800000  # the bits of 1.0


def define_exponential(module: ir.Module, lanes: int) -> ir.Function:
    """`<lanes x float> exponential(<lanes x float>)`; exp(0) is 1 exactly, NaN stays NaN. Asked for again, it is the same function."""
    name = f"exponential_{lanes}"
    if name in module.globals:
        return module.globals[name]
    vector = ir.VectorType(f32, lanes)
    made, builder = function(module, name, vector, vector)
    (x,), vectors = made.args, Vectors(builder, lanes)
    shift = vectors.number(_SHIFT)
    shifted = vectors.intrinsic("fma", x, vectors.number(1 / math.log(2)), shift)
    halvings = builder.fsub(shifted, shift)
    rest = vectors.intrinsic("fma", halvings, vectors.number(-_LOG2_HIGH), x)
    rest = vectors.intrinsic("fma", halvings, vectors.number(-_LOG2_LOW), rest)
    found = vectors.polynomial([1 / math.factorial(power) for power in range(_DEGREE + 1)], rest)
    bits = builder.shl(builder.bitcast(shifted, vectors.whole), vectors.integer(23))
    scaled = builder.fmul(found, builder.bitcast(builder.add(bits, vectors.integer(_ONE)), vector))
    builder.ret(builder.select(builder.fcmp_ordered("<", x, vectors.number(LOWEST)), vectors.number(0.0), scaled))
    return made


def halved(builder: Builder, vector: Value, lanes: int) -> tuple[Value, Value]:
    """The two halves of a vector."""
    half = lanes // 2
    places = [ir.Constant(ir.VectorType(i32, half), list(range(first, first + half))) for first in (0, half)]
    lower, upper = (builder.shuffle_vector(vector, vector, place) for place in places)
    return lower, upper
