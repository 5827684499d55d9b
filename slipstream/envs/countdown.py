"""Countdown: reach a target from numbers with + - * / and brackets, each number exactly once. Generated problems and an exact grader.

The grader reads the expression itself, in fractions: nothing of a reply is ever run. Pure.
"""

import re
from collections import Counter
from fractions import Fraction
from typing import Any

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.core.rng import generator
from slipstream.envs.catalog.entry import RowProblem
from slipstream.envs.tags import last_answer

MOST_NUMBERS = 12
_TRIES = 16  # drawn at once
_MAX_DEPTH = 60  # brackets and signs within each other
_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
_WRITTEN = str.maketrans("\u00d7\u00b7\u22c5\u00f7\u2212\u2013[]", "***/--()")  # times, dots, obelus, minus, dash


class Unreadable(ValueError):
    """Why a text is no expression."""


def grade_countdown(numbers: tuple[int, ...], target: int, reply: str) -> Outcome:
    """Reward 1 for an expression in the last <answer> (else in the last line) that uses the numbers once each and equals the target.

    `= target` behind it may stand there. Unparseable where no expression is found.
    """
    tagged = last_answer(reply)
    text = tagged if tagged is not None else reply.strip().rpartition("\n")[2]
    form = tagged is not None
    try:
        value, used = evaluate(_left_side(text, target))
    except Unreadable as why:
        return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False, detail=f"no expression: {why}")
    if Counter(used) != Counter(numbers):
        detail = f"uses {sorted(used)[: 2 * MOST_NUMBERS]}, not {sorted(numbers)}"
    elif value is None:
        detail = "divides by zero"
    elif value != target:
        detail = f"equals {str(value)[:40]}, want {target}"
    else:
        return Outcome(kind=OutcomeKind.VALUE, reward=1.0, format_ok=form, detail=f"{text[:80]} is {target}")
    return Outcome(kind=OutcomeKind.WRONG, reward=0.0, format_ok=form, detail=detail)


def evaluate(text: str) -> tuple[Fraction | None, list[int]]:
    """The value of an expression of whole numbers, + - * / and brackets (None where it divides by zero), and the numbers in it.

    Raises Unreadable for anything else, and for more than `2 * MOST_NUMBERS` numbers.
    """
    reader = _Reader(_tokens(text))
    value = reader.sum(0)
    if reader.place < len(reader.tokens):
        raise Unreadable(f"{reader.tokens[reader.place]!r} is not expected")
    return value, reader.used


def read_numbers(numbers: Any, target: Any) -> tuple[tuple[int, ...], int]:
    """The numbers and the target of a row. Raises RowProblem for others than whole numbers from 0."""
    if not isinstance(numbers, list) or not 1 <= len(numbers) <= MOST_NUMBERS or not all(_whole(number) for number in numbers):
        raise RowProblem(f"field 'numbers' (or 'nums') is not a list of 1 to {MOST_NUMBERS} whole numbers")
    if not _whole(target):
        raise RowProblem("field 'target' is not a whole number")
    return tuple(numbers), target


def generate(seed: int, index: int, *, count: int, largest: int, largest_target: int) -> tuple[tuple[int, ...], int, str]:
    """The `index`-th problem of a seed: `count` >= 2 numbers from 1 to `largest`, a target from 1 to `largest_target`, a solution."""
    rng = generator(seed, "countdown", count, largest, largest_target, index)
    while True:
        for draws in rng.integers(0, 1 << 30, (_TRIES, 4 * count - 3)).tolist():
            numbers = tuple(1 + draw % largest for draw in draws[:count])
            target, solution = _combined(numbers, draws[count:])
            if 1 <= target <= largest_target:
                return numbers, target, solution


class _Reader:
    """Recursive descent over tokens; `used` are the numbers met so far."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place, self.used = tokens, 0, list[int]()

    def sum(self, depth: int) -> Fraction | None:
        value = self.product(depth)
        while (sign := self.next("+-")) is not None:
            other = self.product(depth)
            value = None if value is None or other is None else value + other if sign == "+" else value - other
        return value

    def product(self, depth: int) -> Fraction | None:
        value = self.atom(depth)
        while (sign := self.next("*/")) is not None:
            other = self.atom(depth)
            if value is None or other is None or (sign == "/" and not other):
                value = None
            else:
                value = value * other if sign == "*" else value / other
        return value

    def atom(self, depth: int) -> Fraction | None:
        if depth > _MAX_DEPTH:
            raise Unreadable("too many brackets within each other")
        if self.next("-") is not None:
            value = self.atom(depth + 1)
            return None if value is None else -value
        if self.next("(") is not None:
            value = self.sum(depth + 1)
            if self.next(")") is None:
                raise Unreadable("a bracket is not closed")
            return value
        if self.place == len(self.tokens) or not self.tokens[self.place].isdigit():
            raise Unreadable(f"{self.tokens[self.place]!r} is not expected" if self.place < len(self.tokens) else "it ends too early")
        self.used.append(int(self.tokens[self.place]))
        self.place += 1
        if len(self.used) > 2 * MOST_NUMBERS:
            raise Unreadable("too many numbers")
        return Fraction(self.used[-1])

    def next(self, wanted: str) -> str | None:
        """Takes the next token where it is one of the wanted signs."""
        if self.place < len(self.tokens) and self.tokens[self.place] in wanted:
            self.place += 1
            return self.tokens[self.place - 1]
        return None


def _tokens(text: str) -> list[str]:
    text = text.translate(_WRITTEN).strip()
    if len(text) > 1_000:
        raise Unreadable("it is longer than 1000 characters")
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unreadable(f"{text[place : place + 20]!r} is no number, sign or bracket")
        number = match[1]
        if number and len(number) > 12:
            raise Unreadable("a number of more than 12 digits")
        found.append(number or match[2])
        place = match.end()
    return found


def _left_side(text: str, target: int) -> str:
    """`(1 + 2) * 3 = 9` without what follows the sign, where that is the target."""
    left, sign, right = text.partition("=")
    return left if sign and right.strip() == str(target) else text


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _combined(numbers: tuple[int, ...], draws: list[int]) -> tuple[int, str]:
    """Two of the values joined by a drawn sign, until one is left; a division that leaves a rest becomes a sum. Three draws a pair."""
    values = [(number, str(number)) for number in numbers]
    for pair in range(len(numbers) - 1):
        a, a_text = values.pop(draws[3 * pair] % len(values))
        b, b_text = values.pop(draws[3 * pair + 1] % len(values))
        sign = "+-*/"[draws[3 * pair + 2] % 4]
        if sign == "/" and (not b or a % b):
            sign = "+"
        value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a // b
        values.append((value, f"({a_text} {sign} {b_text})"))
    return values[0][0], values[0][1][1:-1]
