"""Values of expressions, and whether two expressions are equal. Exact where they are rational, else to hundreds of digits.

Equality is decided by value: constants exactly as fractions or to 40 and then 400 digits, expressions with unknowns at several
random points (Schwartz 1980, "Fast probabilistic algorithms for verification of polynomial identities"; the points are fixed by
the names, so a verdict never changes). Nothing is expanded or simplified, so no input takes long: what would be too large to
compute (9^9^9) stays a symbol that equals only itself. Runs in the workers of a `pool`; called by `math_compare` and `math_reals`.
"""

import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from slipstream.envs.verifiers.math_functions import FUNCTIONS, TooLarge, Undefined, as_mp, power, small_enough
from slipstream.envs.verifiers.math_terms import CONSTANTS, Term, free_symbols, key, number, walk

DIGITS, MANY_DIGITS = 40, 400  # decimal places of a first and of a deciding comparison
AGREE = 10  # digits that rounding may take away from either
MAX_MATRIX = 400  # entries
MAX_DETERMINANT = 6  # rows
Point = Mapping[str, Fraction]
Value = Any  # Fraction, mpmath number, or a tuple of rows of such


def equal(one: Term, other: Term) -> bool:
    """Whether two expressions are the same number, the same function of their unknowns, or the same matrix."""
    if key(one) == key(other):
        return not _is_undefined(one)
    names = sorted(free_symbols(one) | free_symbols(other))
    whole = _whole_names(one) | _whole_names(other)
    if not names:
        return bool(_agree(one, other, {}, real_only=False))
    complex_allowed = any(node.name == "i" for term in (one, other) for node in walk(term))
    for real_only, points in (
        (not complex_allowed, _real_points(names, whole)),
        (True, _whole_points(names)),
        (False, _real_points(names, whole)),
    ):
        verdicts = [_agree(one, other, point, real_only=real_only) for point in points]
        judged = [verdict for verdict in verdicts if verdict is not None]
        if judged:
            return all(judged)
    return False


def proportional(one: Term, other: Term, *, positive: bool = False) -> bool:
    """Whether `one` is a constant other than zero times `other`, as the sides of one equation are."""
    names = sorted(free_symbols(one) | free_symbols(other))
    ratios = []
    with mpmath.workdps(DIGITS + AGREE):
        for point in _real_points(names, _whole_names(one) | _whole_names(other)):
            try:
                above, below = value(one, point), value(other, point)
                if isinstance(above, tuple) or isinstance(below, tuple) or below == 0 or above == 0:
                    return False
                ratios.append(as_mp(above) / as_mp(below))
            except Undefined:
                continue
        if not ratios or (positive and not (mpmath.im(ratios[0]) == 0 and mpmath.re(ratios[0]) > 0)):
            return False
        return all(_close(ratio, ratios[0], DIGITS - AGREE) for ratio in ratios)


def value(term: Term, point: Point) -> Value:
    """The value at a point, at mpmath's present precision. Raises Undefined, as for a division by zero."""
    if term.head == "num":
        return term.value
    if term.head == "sym":
        return _named(term.name, point)
    if term.head == "huge":
        return _stand_in(term.name)
    if term.head in ("pm", "mp"):
        raise Undefined("a sign is left open")
    if term.head == "matrix":
        if sum(len(row.args) for row in term.args) > MAX_MATRIX:
            raise Undefined("a matrix of that size is compared by its text")
        return tuple(tuple(value(entry, point) for entry in row.args) for row in term.args)
    values = [value(arg, point) for arg in term.args]
    try:
        found = _real_where_it_can_be(_compute(term, values))
        if isinstance(found, tuple) or small_enough(found):
            return found
    except TooLarge:
        pass
    shown = [_shown(arg) for arg in values]
    return _stand_in(f"{term.head}{term.name}({','.join(sorted(shown) if term.head in ('add', 'mul') else shown)})")


def number_of(term: Term) -> Value:
    """The real value of a constant to `DIGITS`. Raises Undefined where it has unknowns, is no number or is not real."""
    if free_symbols(term):
        raise Undefined("it has unknowns")
    with mpmath.workdps(DIGITS):
        found = value(term, {})
        if isinstance(found, tuple) or mpmath.im(as_mp(found)) != 0:
            raise Undefined("it is not real")
        return mpmath.re(as_mp(found))


def folded(term: Term) -> Term:
    """The term, or its value where that is a fraction."""
    if free_symbols(term):
        return term
    try:
        with mpmath.workdps(DIGITS):
            found = value(term, {})
    except Undefined:
        return term
    return number(found) if isinstance(found, Fraction) else term


def sign_of(term: Term) -> int:
    """-1, 0 or 1 for a real constant. Raises Undefined."""
    if equal(term, number(0)):
        return 0
    return 1 if number_of(term) > 0 else -1


def is_defined(term: Term) -> bool:
    return not _is_undefined(term)


def _is_undefined(term: Term) -> bool:
    """Whether it has no value anywhere we look, as 1/0."""
    names = sorted(free_symbols(term))
    with mpmath.workdps(DIGITS):
        for point in _real_points(names, _whole_names(term)) if names else [{}]:
            try:
                value(term, point)
                return False
            except Undefined:
                continue
    return True


def _agree(one: Term, other: Term, point: Point, *, real_only: bool) -> bool | None:
    """Whether both have one value there; None where the point tells nothing: undefined, or not real where only reals count."""
    for digits in (DIGITS, MANY_DIGITS):
        with mpmath.workdps(digits + AGREE):
            try:
                values = value(one, point), value(other, point)
            except Undefined:
                return None
            verdict = _same_value(*values, digits - AGREE, real_only and bool(point))
            if not verdict or all(isinstance(found, Fraction) for found in values):
                return verdict
    return True


def _same_value(one: Value, other: Value, digits: int, real_only: bool) -> bool | None:
    if isinstance(one, tuple) or isinstance(other, tuple):
        if not (isinstance(one, tuple) and isinstance(other, tuple)) or [len(row) for row in one] != [len(row) for row in other]:
            return False
        pairs = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
        verdicts = [_same_value(*pair, digits, real_only) for pair in pairs]
        return None if None in verdicts and False not in verdicts else all(verdicts)
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    left, right = as_mp(one), as_mp(other)
    if real_only and (mpmath.im(left) != 0 or mpmath.im(right) != 0):
        return None
    return _close(left, right, digits)


def _close(one: Any, other: Any, digits: int) -> bool:
    if mpmath.isinf(one) or mpmath.isinf(other):
        return bool(one == other)
    size = max(abs(one), abs(other))
    return bool(abs(one - other) <= size * mpmath.mpf(10) ** -digits) or bool(
        size < mpmath.mpf(10) ** (-mpmath.mp.dps) and 0 in (one, other)
    )


def _compute(term: Term, values: list[Value]) -> Value:
    if any(isinstance(found, tuple) for found in values):
        return _of_matrices(term, values)
    if term.head != "call":
        return _ARITHMETIC[term.head](values)
    if term.name not in FUNCTIONS:
        raise TooLarge("an unknown function")  # equal to itself, for equal arguments
    return FUNCTIONS[term.name](*values)


def _real_where_it_can_be(found: Value) -> Value:
    """A complex number without an imaginary part as a real one, which has an order."""
    return found.real if isinstance(found, mpmath.mpc) and found.imag == 0 else found


def _named(name: str, point: Point) -> Value:
    if name in point:
        return point[name]
    if name in CONSTANTS:
        return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "infty": mpmath.inf}[name] + 0
    return _stand_in(name)


def _of_matrices(term: Term, values: list[Value]) -> Value:
    """Sums, multiples, products and determinants of matrices."""
    if term.head == "add":
        total = values[0]
        for found in values[1:]:
            if not (isinstance(total, tuple) and isinstance(found, tuple)) or [len(r) for r in total] != [len(r) for r in found]:
                raise Undefined("a sum of unlike things")
            total = tuple(tuple(_plus([a, b]) for a, b in zip(*rows, strict=True)) for rows in zip(total, found, strict=True))
        return total
    if term.head == "mul":
        product = values[0]
        for found in values[1:]:
            product = _matrix_product(product, found)
        return product
    if term.head == "div" and not isinstance(values[1], tuple):
        return _matrix_product(values[0], _over([Fraction(1), values[1]]))
    if term.head == "call" and term.name == "det":
        return _determinant(values[0])
    raise Undefined("no such operation on a matrix")


def _matrix_product(one: Value, other: Value) -> Value:
    if not isinstance(one, tuple):
        one, other = other, one
    if not isinstance(one, tuple):
        return _times([one, other])
    if not isinstance(other, tuple):
        return tuple(tuple(_times([entry, other]) for entry in row) for row in one)
    if len(one[0]) != len(other):
        raise Undefined("a product of matrices that do not fit")
    columns = list(zip(*other, strict=True))
    return tuple(tuple(_plus([_times([a, b]) for a, b in zip(row, column, strict=True)]) for column in columns) for row in one)


def _determinant(rows: Value) -> Value:
    if not isinstance(rows, tuple) or len(rows) > MAX_DETERMINANT or any(len(row) != len(rows) for row in rows):
        raise Undefined("no determinant")
    if len(rows) == 1:
        return rows[0][0]
    minors = [tuple(row[:n] + row[n + 1 :] for row in rows[1:]) for n in range(len(rows))]
    return _plus([_times([Fraction((-1) ** n), rows[0][n], _determinant(minor)]) for n, minor in enumerate(minors)])


def _plus(values: list[Value]) -> Value:
    if all(isinstance(found, Fraction) for found in values):
        return sum(values, Fraction(0))
    total = mpmath.fsum(as_mp(found) for found in values)
    if mpmath.isnan(total):
        raise Undefined("infinity less infinity")
    return total


def _times(values: list[Value]) -> Value:
    product: Value = Fraction(1)
    for found in values:
        if isinstance(product, Fraction) and isinstance(found, Fraction):
            product *= found
        else:
            product = as_mp(product) * as_mp(found)
        if not small_enough(product):
            raise TooLarge("a product too large")
    if not isinstance(product, Fraction) and mpmath.isnan(product):
        raise Undefined("zero times infinity")
    return product


def _over(values: list[Value]) -> Value:
    above, below = values
    if below == 0:
        raise Undefined("a division by zero")
    if isinstance(above, Fraction) and isinstance(below, Fraction):
        return above / below
    return as_mp(above) / as_mp(below)


_ARITHMETIC: dict[str, Callable[[list[Value]], Value]] = {
    "add": _plus,
    "mul": _times,
    "div": _over,
    "pow": lambda values: power(*values),
}


def _shown(found: Value) -> str:
    """A text that is the same for the same value, at any precision."""
    if isinstance(found, Fraction):
        return str(found)
    return "matrix" if isinstance(found, tuple) else str(mpmath.nstr(found, DIGITS // 2))


def _stand_in(name: str, low: int = 1_000_003, high: int = 7_999_993) -> Fraction:
    """A number between 1 and 8 that stands for what has no value that can be computed: the same for the same name, like no other's."""
    return Fraction(low + zlib.crc32(name.encode()) % (high - low), 1_000_003)


def _real_points(names: list[str], whole: frozenset[str]) -> list[Point]:
    """Two points of positive numbers and two of either sign; whole numbers for names that only make sense so."""
    points = []
    for index in range(4):
        point = {}
        for name in names:
            seed = zlib.crc32(f"{name}#{index}".encode())
            if name in whole:
                point[name] = Fraction(2 + seed % 23)
            else:
                sign = -1 if index >= 2 and seed & 1 << 20 else 1
                point[name] = sign * Fraction(1_009 + seed % 9_973, 4_001)
        points.append(point)
    return points


def _whole_points(names: list[str]) -> list[Point]:
    return [{name: Fraction(2 + zlib.crc32(f"{name}@{index}".encode()) % 29) for name in names} for index in range(3)]


def _whole_names(term: Term) -> frozenset[str]:
    """Unknowns that count something: in factorials, binomials, and exponents of negative numbers."""
    found = set[str]()
    for node in walk(term):
        if node.head == "call" and node.name in ("factorial", "binomial", "gcd", "lcm"):
            found.update(*(free_symbols(arg) for arg in node.args))
        elif node.head == "pow" and _is_negative_constant(node.args[0]):
            found.update(free_symbols(node.args[1]))
    return frozenset(found)


def _is_negative_constant(term: Term) -> bool:
    if term.head == "num":
        return term.value < 0
    return (
        term.head == "mul"
        and len(term.args) == 2
        and all(arg.head == "num" for arg in term.args)
        and term.args[0].value * term.args[1].value < 0
    )
