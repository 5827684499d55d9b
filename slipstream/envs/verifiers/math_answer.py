"""What an answer is, as data: a value with a unit, a tuple or interval, a list or set, a relation, a ratio, a time, or words."""

from dataclasses import dataclass

from slipstream.envs.verifiers.math_terms import Term
from slipstream.envs.verifiers.math_units import NO_UNIT, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number or expression, with a unit where one is written. Worked example: 5 cm is 5 with the unit of length 1/100."""

    term: Term
    unit: Unit = NO_UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Text, folded for comparison: words, or what could not be read."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracketed:
    """(a, b), [a, b) and longer: a tuple or an interval, whichever the other side takes it for."""

    opened: str
    closed: str
    parts: "tuple[Answer, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Several answers, in order of writing; `braces` for a set; `joined` are the separators between them."""

    parts: "tuple[Answer, ...]"
    braces: bool = False
    joined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """a < b <= c, or an equation."""

    sides: "tuple[Answer, ...]"
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOf:
    """A union, intersection or difference of sets, or a set by its condition (`operation` "where", one part)."""

    operation: str  # cup, cap, setminus, where
    parts: "tuple[Answer, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """a : b : c."""

    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A time of day."""

    hour: int
    minute: int
    half: str  # am, pm, or "" where it is not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Based:
    """Digits in a base."""

    digits: str
    base: str


Answer = Value | Words | Bracketed | Items | Relation | SetOf | Ratio | Clock | Based
