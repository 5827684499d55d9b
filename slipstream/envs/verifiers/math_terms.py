"""Expressions as trees. Pure data and the few things that follow from shape alone; values are `math_value`'s.

Worked example: 2x^2 is product(number(2), raised(symbol("x"), number(2))).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as every_choice

MAX_SIGNS = 6  # of plus-minus in one expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One node. Heads: num, huge (digits in `name`), sym, add, mul, div, pow, pm (+-), mp (-+), call (function in `name`), matrix, row."""

    head: str
    args: tuple["Term", ...] = ()
    value: Fraction = Fraction(0)  # of num
    name: str = ""  # of sym, huge and call


def number(value: int | Fraction) -> Term:
    return Term(head="num", value=Fraction(value))


def symbol(name: str) -> Term:
    return Term(head="sym", name=name)


def call(name: str, *args: Term) -> Term:
    return Term(head="call", args=args, name=name)


def total(*terms: Term) -> Term:
    return Term(head="add", args=terms)


def product(*terms: Term) -> Term:
    return Term(head="mul", args=terms)


def quotient(above: Term, below: Term) -> Term:
    return Term(head="div", args=(above, below))


def raised(base: Term, exponent: Term) -> Term:
    return Term(head="pow", args=(base, exponent))


def negative(term: Term) -> Term:
    return product(number(-1), term)


def difference(one: Term, other: Term) -> Term:
    return total(one, negative(other))


INFINITY = symbol("infty")
CONSTANTS = frozenset(("pi", "e", "i", "infty"))


def walk(term: Term) -> Iterator[Term]:
    """Every node, without recursion: trees may be deep."""
    pending = [term]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.args)


def free_symbols(term: Term) -> frozenset[str]:
    """Names that stand for unknown numbers."""
    return frozenset(node.name for node in walk(term) if node.head == "sym") - CONSTANTS


def has_symbol(term: Term, name: str) -> bool:
    return any(node.head == "sym" and node.name == name for node in walk(term))


def key(term: Term) -> str:
    """A text that is the same for the same tree, whatever the order of sums and products."""
    if term.head == "num":
        return str(term.value)
    if term.head in ("sym", "huge"):
        return term.name
    parts = [key(arg) for arg in term.args]
    if term.head in ("add", "mul"):
        parts.sort()
    return f"{term.head}{term.name}({','.join(parts)})"


def substitute(term: Term, name: str, by: Term) -> Term:
    """The term with `by` in place of the symbol."""
    if term.head == "sym":
        return by if term.name == name else term
    if not term.args:
        return term
    return Term(head=term.head, args=tuple(substitute(arg, name, by) for arg in term.args), value=term.value, name=term.name)


def choose_signs(terms: tuple[Term, ...]) -> list[tuple[Term, ...]]:
    """Every choice of plus and minus in terms that stand together, `[terms]` where there is nothing to choose.

    Plus-minus signs are independent, save that one with a minus-plus beside it goes against it.
    """
    signs = sum(node.head in ("pm", "mp") for term in terms for node in walk(term))
    if not signs or signs > MAX_SIGNS:
        return [terms]
    linked = any(node.head == "mp" for term in terms for node in walk(term))
    choices = [(sign,) * signs for sign in (1, -1)] if linked else list(every_choice((1, -1), repeat=signs))
    return [_signed_all(terms, iter(choice)) for choice in choices]


def _signed_all(terms: tuple[Term, ...], signs: Iterator[int]) -> tuple[Term, ...]:
    return tuple(_signed(term, signs) for term in terms)


def _signed(term: Term, signs: Iterator[int]) -> Term:
    if term.head in ("pm", "mp"):
        sign = next(signs) * (1 if term.head == "pm" else -1)
        (inner,) = term.args
        return product(number(sign), _signed(inner, signs))
    if not term.args:
        return term
    return Term(head=term.head, args=_signed_all(term.args, signs), value=term.value, name=term.name)
