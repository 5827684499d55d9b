"""The functions that answers are written with, on exact fractions or mpmath numbers; huge results are refused before they cost.

A function raises Undefined where it has no value. Called by `math_value` only.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

MAX_EXACT_BITS = 1 << 16  # of a fraction that is computed exactly
MAX_EXPONENT_BITS = 1 << 22  # of 2 in the size of a number; beyond it numbers are compared by their text
MAX_ANGLE_BITS = 1 << 12
MAX_FACTORIAL = 3_000
Number = Any  # Fraction or mpmath number


class Undefined(ArithmeticError):
    """It has no value, or none that can be computed."""


class TooLarge(Undefined):
    """It has a value, which is not computed: it is compared by what it is made of."""


def as_mp(found: Number) -> Any:
    """The number at mpmath's present precision."""
    if isinstance(found, Fraction):
        return mpmath.mpf(found.numerator) / found.denominator
    return found


def small_enough(found: Number) -> bool:
    """Whether the number is of a size to go on computing with."""
    if isinstance(found, Fraction):
        return max(found.numerator.bit_length(), found.denominator.bit_length()) <= MAX_EXACT_BITS
    return bool(mpmath.isinf(found)) or found == 0 or abs(_bits(found)) <= MAX_EXPONENT_BITS


def power(base: Number, exponent: Number) -> Number:
    """base ** exponent; odd roots of negative fractions are the real ones. 0 to a power that is not positive is undefined, save 0^0 = 1."""
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and isinstance(base, Fraction):
        if base == 0 and exponent < 0:
            raise Undefined("a division by zero")
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base in (0, 1, -1) or bits * abs(exponent) <= MAX_EXACT_BITS:
            return base ** (int(exponent) if base not in (1, -1) else int(exponent % 2))
    elif isinstance(exponent, Fraction) and isinstance(base, Fraction) and exponent.denominator <= 64:
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return power(root, Fraction(exponent.numerator))
        if base < 0 and exponent.denominator % 2:
            sign = -1 if exponent.numerator % 2 else 1
            return sign * power(-base, exponent)
    return _inexact_power(as_mp(base), as_mp(exponent))


def _inexact_power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mpmath.re(exponent) <= 0:
            raise Undefined("a power of zero")
        return mpmath.mpf(0)
    if mpmath.isinf(base) or mpmath.isinf(exponent):
        raise Undefined("a power with infinity")
    size = abs(exponent) * (abs(_bits(base)) + 1)
    if size > MAX_EXPONENT_BITS:
        raise TooLarge("a power too large")
    return mpmath.power(base, exponent)


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The root where it is a fraction; None where it is not."""
    sign = -1 if base < 0 else 1
    if sign < 0 and degree % 2 == 0:
        return None
    above, below = (_whole_root(part, degree) for part in (abs(base.numerator), base.denominator))
    return None if above is None or below is None else Fraction(sign * above, below)


def _whole_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
    else:
        with mpmath.workdps(number.bit_length() // 3 + 20):
            root = _nearest(mpmath.root(number, degree))
    return root if root**degree == number else None


def _root(base: Number, degree: Number) -> Number:
    if not isinstance(degree, Fraction) or degree == 0:
        raise Undefined("a root of that degree")
    if degree.denominator == 1 and degree % 2 and not isinstance(base, Fraction) and mpmath.im(base) == 0 and base < 0:
        return -power(-base, 1 / degree)
    return power(base, 1 / degree)


def _factorial(n: Number) -> Number:
    if mpmath.im(as_mp(n)) != 0:
        raise Undefined("a factorial of a complex number")
    if isinstance(n, Fraction) and n.denominator == 1:
        if n < 0:
            raise Undefined("a factorial of a negative number")
        if n <= MAX_FACTORIAL:
            return Fraction(math.factorial(int(n)))
    if mpmath.isinf(as_mp(n)) or _bits(as_mp(n)) > 64 or n * _bits(as_mp(n)) > MAX_EXPONENT_BITS:
        raise TooLarge("a factorial too large")
    return mpmath.factorial(as_mp(n))


def _binomial(n: Number, k: Number) -> Number:
    if mpmath.im(as_mp(n)) != 0 or mpmath.im(as_mp(k)) != 0:
        raise Undefined("a binomial of complex numbers")
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1:
        if k < 0 or (n >= 0 and k > n):
            return Fraction(0)
        if 0 <= n <= MAX_FACTORIAL:
            return Fraction(math.comb(int(n), int(k)))
    if max(_bits(as_mp(n)), _bits(as_mp(k))) > 64 or abs(n) > MAX_EXPONENT_BITS:
        raise TooLarge("a binomial too large")
    return mpmath.binomial(as_mp(n), as_mp(k))


def _logarithm(number: Number, base: Number) -> Number:
    if number == 0 or base in (0, 1):
        raise Undefined("a logarithm of zero")
    if mpmath.isinf(as_mp(number)):
        return mpmath.inf
    exact = _exact_logarithm(number, base)
    return exact if exact is not None else mpmath.log(as_mp(number)) / mpmath.log(as_mp(base))


def _exact_logarithm(number: Number, base: Number) -> Fraction | None:
    """A whole exponent, where base ** exponent is exactly the number."""
    if not (isinstance(number, Fraction) and isinstance(base, Fraction)) or number < 0 or base <= 0 or base == 1:
        return None
    with mpmath.workdps(30):
        exponent = _nearest(mpmath.log(as_mp(number)) / mpmath.log(as_mp(base)))
    return Fraction(exponent) if abs(exponent) < 10_000 and base**exponent == number else None


def _natural(number: Number) -> Number:
    if number == 0:
        raise Undefined("a logarithm of zero")
    return Fraction(0) if number == 1 else mpmath.log(as_mp(number))


def _exponential(exponent: Number) -> Number:
    return _inexact_power(mpmath.e + 0, as_mp(exponent)) if exponent != 0 else Fraction(1)


def _rounded(down: bool) -> Callable[[Number], Number]:
    def run(number: Number) -> Number:
        if isinstance(number, Fraction):
            return Fraction(math.floor(number) if down else math.ceil(number))
        if mpmath.im(number) != 0:
            raise Undefined("rounding of a complex number")
        if mpmath.isinf(number) or _bits(number) > 3 * mpmath.mp.dps:  # 3.3 bits a digit
            raise TooLarge("a number too large to round")
        nearest = _nearest(number)  # a sum of roots that is whole must not fall to either side of itself
        if abs(number - nearest) < mpmath.mpf(10) ** (8 - mpmath.mp.dps):
            return Fraction(nearest)
        return Fraction(nearest - (nearest > number) if down else nearest + (nearest < number))

    return run


def _whole(function: Callable[..., int]) -> Callable[..., Number]:
    def run(*numbers: Number) -> Number:
        if any(not isinstance(number, Fraction) or number.denominator != 1 for number in numbers):
            raise Undefined("of whole numbers only")
        return Fraction(function(*(int(number) for number in numbers)))

    return run


def _modulo(number: Number, modulus: Number) -> Number:
    if not (isinstance(number, Fraction) and isinstance(modulus, Fraction)) or modulus == 0:
        raise Undefined("a remainder of such numbers")
    return number % modulus


def _absolute(number: Number) -> Number:
    return abs(number)


def _extreme(function: Callable[..., Number]) -> Callable[..., Number]:
    def run(*numbers: Number) -> Number:
        if any(mpmath.im(as_mp(number)) != 0 for number in numbers):
            raise Undefined("an order of complex numbers")
        return function(numbers, key=as_mp)

    return run


def _angle(function: Callable[[Any], Any], poles: bool = False) -> Callable[[Number], Number]:
    """A trigonometric function; a value beyond reach of the precision is a pole."""

    def run(number: Number) -> Number:
        angle = as_mp(number)
        if mpmath.isinf(angle) or _bits(angle) > MAX_ANGLE_BITS:
            raise TooLarge("an angle too large")
        if abs(mpmath.im(angle)) > MAX_ANGLE_BITS:
            raise TooLarge("an angle too large")
        try:
            found = function(angle)
        except (ZeroDivisionError, ValueError):
            raise Undefined("a pole") from None
        if poles and abs(found) > mpmath.mpf(10) ** (mpmath.mp.dps // 2):
            raise Undefined("a pole")
        return _snapped(found)

    return run


def _snapped(found: Any) -> Any:
    """Zero where rounding left a trace of it."""
    return mpmath.mpf(0) if abs(found) < mpmath.mpf(10) ** (4 - mpmath.mp.dps) else found


def _bits(found: Any) -> int:
    """The exponent of 2 in its size."""
    size = abs(found)
    if mpmath.isnan(size):
        raise Undefined("no number")
    return int(mpmath.mag(size)) if size != 0 and not mpmath.isinf(size) else 0


def _nearest(found: Any) -> int:
    """The whole number next to a real one."""
    rounded: Any = mpmath.nint(found)
    return int(rounded)


def _inverse(function: Callable[[Any], Any]) -> Callable[[Number], Number]:
    def run(number: Number) -> Number:
        try:
            return function(as_mp(number))
        except (ZeroDivisionError, ValueError):
            raise Undefined("no such angle") from None

    return run


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "sqrt": lambda number: power(number, Fraction(1, 2)),
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
    "log": lambda number, base=Fraction(10): _logarithm(number, base),
    "lg": lambda number: _logarithm(number, Fraction(10)),
    "ln": _natural,
    "exp": _exponential,
    "abs": _absolute,
    "floor": _rounded(True),
    "ceil": _rounded(False),
    "gcd": _whole(math.gcd),
    "lcm": _whole(math.lcm),
    "mod": _modulo,
    "max": _extreme(max),
    "min": _extreme(min),
    "Re": lambda number: mpmath.re(as_mp(number)),
    "Im": lambda number: mpmath.im(as_mp(number)),
    "arg": _inverse(mpmath.arg),
    "degree": lambda number: as_mp(number) * mpmath.pi / 180,
    "det": lambda number: number,
    **{name: _angle(getattr(mpmath, name)) for name in ("sin", "cos", "sinh", "cosh", "tanh")},
    **{name: _angle(getattr(mpmath, name), poles=True) for name in ("tan", "cot", "sec", "csc")},
    **{name: _inverse(getattr(mpmath, short)) for name, short in (("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan"))},
    **{name: _inverse(getattr(mpmath, short)) for name, short in (("arccot", "acot"), ("arcsec", "asec"), ("arccsc", "acsc"))},
}
