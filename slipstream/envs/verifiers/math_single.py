"""Single answers side by side: values with units, ratios, times, digits in a base, vectors. Pure; called by `math_compare`."""

from fractions import Fraction

from slipstream.envs.verifiers.math_answer import Answer, Based, Bracketed, Clock, Ratio, Value
from slipstream.envs.verifiers.math_terms import Term, call, number, product, quotient, walk
from slipstream.envs.verifiers.math_units import NO_UNIT, same_kind
from slipstream.envs.verifiers.math_value import equal

_ANGLES = frozenset((("degree", 1),))
_RADIANS = frozenset((("radian", 1),))
_PERCENT = frozenset((("percent", 1),))


def same_value(gold: Value, answer: Value) -> bool:
    """Numbers with their units: a percent or degree sign may be left out, or converted."""
    kinds = gold.unit.kinds, answer.unit.kinds
    if _PERCENT in kinds:
        return _same_percent(gold, answer)
    if (kinds[0] == _ANGLES) != (kinds[1] == _ANGLES) and kinds[0 if kinds[1] == _ANGLES else 1] <= _RADIANS:
        degrees, other = (gold, answer) if kinds[0] == _ANGLES else (answer, gold)
        is_radian = other.unit.kinds == _RADIANS
        return (not is_radian and equal(degrees.term, other.term)) or equal(call("degree", degrees.term), other.term)
    if not same_kind(gold.unit, answer.unit):
        return False
    if gold.unit.kinds and answer.unit.kinds and gold.unit.factor != answer.unit.factor:
        return equal(_scaled(gold.term, gold.unit.factor), _scaled(answer.term, answer.unit.factor))
    return equal(gold.term, answer.term)


def _same_percent(gold: Value, answer: Value) -> bool:
    percents = [found.unit.kinds == _PERCENT for found in (gold, answer)]
    if all(percents):
        return equal(gold.term, answer.term)
    percent, other = (gold, answer) if percents[0] else (answer, gold)
    if other.unit is not NO_UNIT and other.unit:
        return False
    return equal(percent.term, other.term) or equal(_scaled(percent.term, Fraction(1, 100)), other.term)


def _scaled(term: Term, factor: Fraction) -> Term:
    return product(number(factor), term)


def is_vector(term: Term, tuple_: Bracketed) -> bool:
    """Whether a matrix of one column or one row has the entries of a tuple."""
    if not any(node.head == "matrix" for node in walk(term)) or not all(isinstance(part, Value) for part in tuple_.parts):
        return False
    entries = tuple(part.term for part in tuple_.parts if isinstance(part, Value))
    row = Term(head="matrix", args=(Term(head="row", args=entries),))
    column = Term(head="matrix", args=tuple(Term(head="row", args=(entry,)) for entry in entries))
    return equal(term, row) or equal(term, column)


def same_ratio(ratio: Ratio, other: Answer) -> bool:
    """Proportional terms; a ratio of two may be written as a fraction, and stands for a time beside one."""
    if isinstance(other, Ratio):
        if len(ratio.terms) != len(other.terms):
            return False
        first, second = ratio.terms[0], other.terms[0]
        pairs = zip(ratio.terms[1:], other.terms[1:], strict=True)
        return all(equal(product(first, b), product(a, second)) for a, b in pairs)
    if isinstance(other, Value) and len(ratio.terms) == 2:
        return equal(quotient(*ratio.terms), other.term)
    if isinstance(other, Clock) and len(ratio.terms) == 2 and all(term.head == "num" for term in ratio.terms):
        hour, minute = (int(term.value) for term in ratio.terms)
        return on_24_hours(Clock(hour=hour, minute=minute, half="")) == on_24_hours(other)
    return False


def on_24_hours(time: Clock) -> tuple[int, int, bool]:
    """Hour and minute from midnight, and whether the half of the day is known."""
    if time.half == "midnight" or (time.half == "am" and time.hour == 12):
        return 0, time.minute, True
    if time.half == "pm" and time.hour < 12:
        return time.hour + 12, time.minute, True
    return time.hour, time.minute, bool(time.half) or time.hour > 12


def same_digits(based: Based, other: Answer) -> bool:
    """The same digits in the same base; the base may be left out, not changed."""
    if isinstance(other, Based):
        return based == other
    return (
        isinstance(other, Value)
        and not other.unit
        and based.digits.lstrip("-").isdigit()
        and equal(other.term, number(Fraction(based.digits)))
    )
