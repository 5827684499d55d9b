"""tanh and the logistic function of vectors, to about two units in the last place, with the same bits on every processor."""

from llvmlite import ir

from slipstream.models.cpu.emit import Value, Vectors, f32, function
from slipstream.models.cpu.exponential import define_exponential

_NEAR = 1.0  # up to it tanh is a polynomial: further on 1 - tanh is small, and so are its errors
# tanh(x) = x + x^3 p(x^2): p by least squares at 400 Chebyshev points of x^2 up to 1, weighted to relative errors, which are below 6e-9
_POLYNOMIAL = (
    *(-0.33333292603492737, 0.1333228200674057, -0.05387599393725395, 0.021475814282894135),
    *(-0.007930326275527477, 0.002289985306560993, -0.0003552270936779678),
)


def define_tanh(module: ir.Module, lanes: int) -> ir.Function:
    """`<lanes x float> tanh(<lanes x float>)`: odd to the bit, 1 exactly for large numbers, NaN stays NaN."""
    made, builder, vectors, x = _function(module, "tanh", lanes)
    size = vectors.intrinsic("fabs", x)
    square = builder.fmul(size, size)
    near = vectors.intrinsic("fma", builder.fmul(size, square), vectors.polynomial(_POLYNOMIAL, square), size)
    e = builder.call(define_exponential(module, lanes), [builder.fmul(size, vectors.number(-2.0))])
    one = vectors.number(1.0)
    far = builder.fsub(one, builder.fdiv(builder.fadd(e, e), builder.fadd(one, e)))
    found = builder.select(builder.fcmp_ordered("<", size, vectors.number(_NEAR)), near, far)
    builder.ret(vectors.intrinsic("copysign", found, x))
    return made


def define_logistic(module: ir.Module, lanes: int) -> ir.Function:
    """`<lanes x float> logistic(<lanes x float>)`: 1 / (1 + exp(-x)), 0 below `LOWEST`, NaN stays NaN."""
    made, builder, vectors, x = _function(module, "logistic", lanes)
    one = vectors.number(1.0)
    e = builder.call(define_exponential(module, lanes), [builder.fneg(vectors.intrinsic("fabs", x))])  # never overflows
    above = builder.select(builder.fcmp_ordered("<", x, vectors.number(0.0)), e, one)
    builder.ret(builder.fdiv(above, builder.fadd(one, e)))
    return made


def _function(module: ir.Module, name: str, lanes: int) -> tuple[ir.Function, Value, Vectors, Value]:
    vector = ir.VectorType(f32, lanes)
    made, builder = function(module, f"{name}_{lanes}", vector, vector)
    return made, builder, Vectors(builder, lanes), made.args[0]
