"""The exact value of a number as it is written. Pure; called by `math_reader`."""

from fractions import Fraction

from slipstream.envs.verifiers.math_terms import Term, number
from slipstream.envs.verifiers.math_tokens import Unreadable

MAX_DIGITS = 2_000  # longer numbers are compared by their digits


def read_number(text: str) -> Term:
    """The exact value of a number as it is written, grouping signs and all; `0.1\\overline{6}` repeats for ever."""
    plain = text.replace("{,}", "").replace(",", "").replace("'", "").replace(" ", "")
    if "\\" in plain:
        return number(_repeating(plain))
    mantissa, _, exponent = plain.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 6 or abs(int(exponent or 0)) > MAX_DIGITS:
        return Term(head="huge", name=plain.lower().lstrip("0"))
    return number(Fraction(plain))


def _repeating(text: str) -> Fraction:
    before, _, rest = text.partition("\\")
    period = rest[rest.index("{") + 1 : rest.index("}")]
    if len(text) > MAX_DIGITS:
        raise Unreadable("a period of that length")
    places = len(before.partition(".")[2])
    start = Fraction(before.rstrip(".") or 0)
    return start + Fraction(int(period), (10 ** len(period) - 1) * 10**places)
