"""exp of vectors of numbers up to 0, and log, to one or two units in the last place, with the same bits on every processor."""

import math

from llvmlite import ir

from slipstream.models.cpu.emit import Vectors, f32, function

LOWEST = -87.0  # below it the result is 0; exp(-87) is nearly the smallest normal number
_DEGREE = 7  # of the Taylor polynomial; within half of log 2 its error is below a unit in the last place
_SHIFT = 12_582_912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the lowest bits
_LOG2_HIGH, _LOG2_LOW = 0.693145751953125, 1.42860682030941723212e-6  # log 2 in two parts, the first of few bits (Cody and Waite 1980)
_ONE, _ROOT_HALF = 0x3F800000, 0x3F3504F3  # the bits of 1 and of the root of 1/2
_TERMS = 6  # of the series of log: its error is below 1e-10


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


def define_logarithm(module: ir.Module, lanes: int) -> ir.Function:
    """`<lanes x float> logarithm(<lanes x float>)`, natural, of normal positive numbers; log(1) is 0 exactly, NaN stays NaN.

    x = 2^h m with m within a factor of sqrt 2 of 1, and log m = 2 artanh((m - 1) / (m + 1)), a series of odd powers.
    """
    vector = ir.VectorType(f32, lanes)
    made, builder = function(module, f"logarithm_{lanes}", vector, vector)
    (x,), vectors = made.args, Vectors(builder, lanes)
    bits, mantissa, one = builder.bitcast(x, vectors.whole), vectors.integer(23), vectors.number(1.0)
    halvings = builder.ashr(builder.sub(bits, vectors.integer(_ROOT_HALF)), mantissa)
    m = builder.bitcast(builder.sub(bits, builder.shl(halvings, mantissa)), vector)
    share = builder.fdiv(builder.fsub(m, one), builder.fadd(m, one))
    series = vectors.polynomial([2 / (2 * power + 1) for power in range(1, _TERMS)], builder.fmul(share, share))
    odd = vectors.intrinsic("fma", builder.fmul(share, builder.fmul(share, share)), series, builder.fadd(share, share))
    wide = builder.sitofp(halvings, vector)
    found = vectors.intrinsic("fma", wide, vectors.number(_LOG2_HIGH), vectors.intrinsic("fma", wide, vectors.number(_LOG2_LOW), odd))
    builder.ret(builder.select(builder.fcmp_unordered("uno", x, x), x, found))
    return made
