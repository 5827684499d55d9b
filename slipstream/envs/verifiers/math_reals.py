"""Sets of real numbers as unions of intervals: what inequalities, intervals and `all real numbers` have in common. Pure.

`-2 <= x <= 7`, `x in [-2,7]` and `[-2,7]` become one `Reals`; ends are expressions and are compared exactly. Called by `math_compare`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key

from slipstream.envs.verifiers.math_terms import (
    INFINITY,
    Term,
    call,
    difference,
    free_symbols,
    key,
    negative,
    number,
    product,
    quotient,
    raised,
    substitute,
    total,
)
from slipstream.envs.verifiers.math_value import equal, folded, number_of, sign_of

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_COMPLEMENT = {"<": ">=", ">": "<=", "<=": ">", ">=": "<", "=": "!=", "!=": "="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The numbers from `low` to `high`; a point where both are one."""

    low: Term
    high: Term
    with_low: bool
    with_high: bool


Reals = tuple[Span, ...]  # apart from each other, in order
EMPTY: Reals = ()
ALL: Reals = (Span(low=negative(INFINITY), high=INFINITY, with_low=False, with_high=False),)


def point(term: Term) -> Span:
    return Span(low=term, high=term, with_low=True, with_high=True)


def same_reals(one: Reals, other: Reals) -> bool:
    """Whether two sets have the same members."""
    return len(one) == len(other) and all(_same_span(*pair) for pair in zip(one, other, strict=True))


def union(spans: Iterable[Span]) -> Reals:
    """In order, with spans that touch made one. Raises Undefined where an end is no real number."""
    found: list[Span] = []
    kept = [span for span in spans if not _is_empty(span)]
    for span in sorted(kept, key=cmp_to_key(_starts_before)):
        last = found[-1] if found else None
        gap = order(last.high, span.low) if last else -1
        if last and (gap > 0 or (gap == 0 and (last.with_high or span.with_low))):
            found[-1] = _joined(last, span)
        else:
            found.append(span)
    return tuple(found)


def intersection(one: Reals, other: Reals) -> Reals:
    return union(_overlap(a, b) for a in one for b in other)


def complement(reals: Reals) -> Reals:
    """All other real numbers."""
    spans, low, with_low = [], negative(INFINITY), False
    for span in reals:
        spans.append(Span(low=low, high=span.low, with_low=with_low, with_high=not span.with_low))
        low, with_low = span.high, not span.with_high
    spans.append(Span(low=low, high=INFINITY, with_low=with_low, with_high=False))
    return union(spans)


def order(one: Term, other: Term) -> int:
    """-1, 0 or 1. Raises Undefined."""
    if equal(one, other):
        return 0
    return -1 if number_of(one) < number_of(other) else 1


def solve(left: Term, relation: str, right: Term) -> tuple[str, Reals] | None:
    """The unknown of a relation and the numbers that fulfil it; None where it is not of degree 1 or 2 in one unknown.

    An absolute value against a constant is squared; any other expression against a constant counts as the unknown itself.
    """
    if not free_symbols(left):
        left, relation, right = right, FLIPPED[relation], left
    names = free_symbols(left) | free_symbols(right)
    if len(names) == 1:
        (name,) = names
        is_absolute = left.head == "call" and left.name == "abs" and not free_symbols(right)
        inner = left.args[0] if is_absolute else left
        solved = _absolute(inner, relation, right, name) if is_absolute else _polynomial(difference(left, right), relation, name)
        if solved is not None:
            return name, solved
    if not free_symbols(right) and free_symbols(left) and relation != "=":
        return key(left), _beyond(relation, right)
    return None


def _same_span(one: Span, other: Span) -> bool:
    kinds_same = (one.with_low, one.with_high) == (other.with_low, other.with_high)
    return kinds_same and equal(one.low, other.low) and equal(one.high, other.high)


def _is_empty(span: Span) -> bool:
    gap = order(span.low, span.high)
    return gap > 0 or (gap == 0 and not (span.with_low and span.with_high))


def _starts_before(one: Span, other: Span) -> int:
    return order(one.low, other.low) or int(other.with_low) - int(one.with_low)


def _joined(one: Span, other: Span) -> Span:
    gap = order(one.high, other.high)
    if gap == 0:
        return Span(low=one.low, high=one.high, with_low=one.with_low, with_high=one.with_high or other.with_high)
    last = one if gap > 0 else other
    return Span(low=one.low, high=last.high, with_low=one.with_low, with_high=last.with_high)


def _overlap(one: Span, other: Span) -> Span:
    low, high = order(one.low, other.low), order(one.high, other.high)
    with_low = one.with_low and other.with_low if low == 0 else one.with_low if low > 0 else other.with_low
    with_high = one.with_high and other.with_high if high == 0 else one.with_high if high < 0 else other.with_high
    return Span(low=one.low if low >= 0 else other.low, high=one.high if high <= 0 else other.high, with_low=with_low, with_high=with_high)


def _beyond(relation: str, end: Term) -> Reals:
    """The numbers in that relation to `end`."""
    if relation in ("<", "<="):
        return union([Span(low=negative(INFINITY), high=end, with_low=False, with_high=relation == "<=")])
    if relation in (">", ">="):
        return union([Span(low=end, high=INFINITY, with_low=relation == ">=", with_high=False)])
    return (point(end),) if relation == "=" else complement((point(end),))


def _absolute(inner: Term, relation: str, right: Term, name: str) -> Reals | None:
    if sign_of(right) < 0:
        return ALL if relation in (">", ">=", "!=") else EMPTY
    squared = difference(raised(inner, number(2)), raised(right, number(2)))
    return _polynomial(squared, relation, name)


def _polynomial(term: Term, relation: str, name: str) -> Reals | None:
    """Where a polynomial of degree 1 or 2 is in that relation to zero; None where it is no such polynomial."""
    at = {place: substitute(term, name, number(place)) for place in (-1, 0, 1)}
    constant = folded(at[0])
    quadratic = folded(_half(total(at[1], at[-1], product(number(-2), at[0]))))
    linear = folded(_half(difference(at[1], at[-1])))
    unknown = Term(head="sym", name=name)
    again = total(product(quadratic, unknown, unknown), product(linear, unknown), constant)
    if not equal(term, again):
        return None
    sign = sign_of(quadratic)
    if sign == 0:
        return _linear(linear, constant, relation)
    return _quadratic(quadratic, linear, constant, relation if sign > 0 else FLIPPED[relation])


def _linear(slope: Term, constant: Term, relation: str) -> Reals | None:
    sign = sign_of(slope)
    if sign == 0:
        return None
    return _beyond(relation if sign > 0 else FLIPPED[relation], folded(quotient(negative(constant), slope)))


def _quadratic(a: Term, b: Term, c: Term, relation: str) -> Reals:
    """Where a x^2 + b x + c is in that relation to zero, as if a were positive."""
    inside = folded(difference(product(b, b), product(number(4), a, c)))
    if sign_of(inside) < 0:
        return ALL if relation in (">", ">=", "!=") else EMPTY
    root = call("sqrt", inside)
    roots = [folded(quotient(total(negative(b), signed), product(number(2), a))) for signed in (negative(root), root)]
    low, high = roots if order(*roots) <= 0 else roots[::-1]
    between = {
        "<": (Span(low=low, high=high, with_low=False, with_high=False),),
        "<=": (Span(low=low, high=high, with_low=True, with_high=True),),
        "=": (point(low), point(high)),
    }
    if relation in between:
        return union(between[relation])
    return complement(union(between[_COMPLEMENT[relation]]))


def _half(term: Term) -> Term:
    return quotient(term, number(2))


def chain(terms: Sequence[Term], relations: Sequence[str]) -> tuple[str, Reals] | None:
    """The unknown and the solutions of `a < x <= b`; None where a part cannot be solved."""
    parts = [solve(terms[n], relation, terms[n + 1]) for n, relation in enumerate(relations)]
    if any(part is None for part in parts):
        return None
    names = {part[0] for part in parts if part}
    found = ALL
    for part in parts:
        assert part
        found = intersection(found, part[1])
    return (next(iter(names)), found) if len(names) == 1 else None
