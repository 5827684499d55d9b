"""A calculator: exact rational arithmetic on what a model writes. Pure; no Python is evaluated, and size is bounded before it is made.

`+ - * / // % ^` (or `**`) and brackets, with their usual ranks; whole and decimal numbers. Results are whole numbers, decimals where
they end, else a fraction and 12 digits of it: 1/3 -> `1/3 = 0.333333333333`.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction

from slipstream.envs.tools.tool import ToolError, function_schema, text_argument
from slipstream.text.call_json import Json

MOST_CHARACTERS = 500
MOST_DEPTH = 40
MOST_BITS = 4096  # of a numerator or denominator
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(\*\*|//|[-+*/%^()]))\s*")
_WRITTEN = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "[": "(", "]": ")", ",": None})


class Calculator:
    """The tool `calculator`: {"expression": "12.5 * (3 - 1)"} -> "25"."""

    name = "calculator"
    schema = function_schema("calculator", "Computes + - * / // % ^ and brackets, exactly.", expression="e.g. 12.5 * (3 - 1)")

    def call(self, arguments: Mapping[str, Json]) -> str:
        return shown(calculate(text_argument(arguments, "expression")))

    def close(self) -> None:
        pass


def calculate(expression: str) -> Fraction:
    """The exact value. Raises ToolError for what cannot be read, divides by zero or grows too large."""
    tokens = _tokens(expression.translate(_WRITTEN))
    reader = _Reader(tokens)
    value = reader.sum(0)
    if reader.place < len(tokens):
        raise ToolError(f"{tokens[reader.place]!r} is not expected")
    return value


def shown(value: Fraction) -> str:
    """The value in digits."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest == 1 and value.denominator < 10**30:
        digits = Context(prec=MOST_BITS).divide(Decimal(value.numerator), Decimal(value.denominator))
        return format(digits, "f")
    digits = Context(prec=12).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{value} = {digits:f}" if abs(digits) < 10**30 else str(value)


def _tokens(text: str) -> list[str]:
    if len(text) > MOST_CHARACTERS:
        raise ToolError(f"the expression is longer than {MOST_CHARACTERS} characters")
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ToolError(f"{text[place : place + 20].strip()!r} is no number, sign or bracket")
        found.append(match[1] or {"**": "^"}.get(match[2], match[2]))
        place = match.end()
    return found


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self.place = tokens, 0

    def sum(self, depth: int) -> Fraction:
        return self._left_to_right(self._product, depth, ("+", "-"))

    def _product(self, depth: int) -> Fraction:
        return self._left_to_right(self._signed, depth, ("*", "/", "//", "%"))

    def _left_to_right(self, part: Callable[[int], Fraction], depth: int, signs: tuple[str, ...]) -> Fraction:
        value = part(depth)
        while (sign := self._next(*signs)) is not None:
            value = _applied(sign, value, part(depth))
        return value

    def _signed(self, depth: int) -> Fraction:
        if (sign := self._next("-", "+")) is not None:
            value = self._signed(self._deeper(depth))
            return -value if sign == "-" else value
        base = self._atom(depth)
        if self._next("^") is None:
            return base
        return _power(base, self._signed(self._deeper(depth)))  # to the right first: 2^3^2 is 2^9, 2^-1 a half

    def _atom(self, depth: int) -> Fraction:
        if self._next("(") is not None:
            value = self.sum(self._deeper(depth))
            if self._next(")") is None:
                raise ToolError("a bracket is not closed")
            return value
        if self.place == len(self._tokens):
            raise ToolError("the expression ends too early")
        token = self._tokens[self.place]
        if not token[0].isdigit() and token[0] != ".":
            raise ToolError(f"{token!r} is not expected")
        self.place += 1
        return Fraction(token)

    def _deeper(self, depth: int) -> int:
        if depth == MOST_DEPTH:
            raise ToolError("too many brackets or signs within each other")
        return depth + 1

    def _next(self, *wanted: str) -> str | None:
        """Takes the next token where it is one of the wanted ones."""
        if self.place < len(self._tokens) and self._tokens[self.place] in wanted:
            self.place += 1
            return self._tokens[self.place - 1]
        return None


def _applied(sign: str, a: Fraction, b: Fraction) -> Fraction:
    if sign in ("/", "//", "%") and not b:
        raise ToolError("division by zero")
    if sign == "+":
        return _bounded(a + b)
    if sign == "-":
        return _bounded(a - b)
    if sign == "*":
        return _bounded(a * b)
    if sign == "/":
        return _bounded(a / b)
    return Fraction(a // b) if sign == "//" else a % b


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("only whole exponents are possible")
    if not base and exponent < 0:
        raise ToolError("division by zero")
    bits = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    if abs(exponent) * max(1, bits - 1) > MOST_BITS and abs(base) not in (0, 1):
        raise ToolError("the result is too large")
    power = int(exponent) if abs(base) not in (0, 1) else int(exponent) % 2 or (2 if exponent else 0)
    return _bounded(Fraction(base**power))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MOST_BITS:
        raise ToolError("the result is too large")
    return value
