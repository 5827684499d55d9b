"""Verdicts on a reply: exact text, or the final number compared as an exact value. Pure; decides by text alone.

Correctness and form are apart: `format_ok` says that the last line is `#### number`, whatever the number is.
"""

import re
from collections import deque
from fractions import Fraction

from slipstream.core.records import Outcome, OutcomeKind

MARK = "####"
_MAX_DIGITS = 400  # longer ones are no answer, and would cost time to compare

_MAGNITUDE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+"
_SIGN = r"(?:(?<![0-9A-Za-z)\]}.])[-+])?"  # the minus of 10-3 is no sign
_NUMBER = re.compile(rf"(?P<sign>{_SIGN})\$?(?P<sign2>{_SIGN})(?P<magnitude>{_MAGNITUDE})(?:/(?P<divisor>[0-9]+)(?![0-9./]))?")
_FORM = re.compile(rf"{MARK}[ \t]*[-+]?\$?[-+]?(?:{_MAGNITUDE})(?:/[0-9]+)?\.?\s*\Z")
_TYPESET = {"\u2212": "-", "{,}": ",", "\\$": "$", "\\!": ""}


def final_number(text: str) -> Fraction | None:
    """The answer in a text: the number after the last `####`, else the last number anywhere; None where there is none.

    Thousands separators, a dollar sign before and a full stop behind are read over: `$1,234.00.` is 1234. `a/b` is one number.
    """
    for written, shown in _TYPESET.items():
        text = text.replace(written, shown)
    before, mark, after = text.rpartition(MARK)
    if mark and (match := _NUMBER.search(after)):
        return _value(match)
    last = deque(_NUMBER.finditer(before if mark else text), maxlen=1)
    return _value(last[0]) if last else None


def has_asked_form(text: str) -> bool:
    """Whether the text ends in a line `#### number`."""
    line = text.rstrip().rpartition("\n")[2]
    return _FORM.match(line.strip()) is not None


def grade_final_number(answer: Fraction, reply: str, format_weight: float = 0.0) -> Outcome:
    """Reward 1 for the right final number, plus `format_weight` for the asked form; unparseable where there is no number."""
    form = has_asked_form(reply)
    number = final_number(reply)
    if number is None:
        return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False, detail="no number in the reply")
    right = number == answer
    reward = float(right) + format_weight * form
    kind = OutcomeKind.VALUE if right else OutcomeKind.WRONG
    return Outcome(kind=kind, reward=reward, format_ok=form, detail=f"read {_shown(number)}, want {_shown(answer)}")


def grade_exact(answer: str, reply: str) -> Outcome:
    """Reward 1 where the reply is the answer, white space around both aside; unparseable where the reply is empty."""
    said = reply.strip()
    if not said:
        return Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, detail="empty reply")
    right = said == answer.strip()
    kind = OutcomeKind.VALUE if right else OutcomeKind.WRONG
    return Outcome(kind=kind, reward=float(right), detail=f"read {said[:60]!r}, want {answer.strip()[:60]!r}")


def _value(match: re.Match[str]) -> Fraction | None:
    magnitude, divisor = match["magnitude"].replace(",", ""), match["divisor"] or "1"
    if len(magnitude) > _MAX_DIGITS or len(divisor) > _MAX_DIGITS or not int(divisor):
        return None
    value = Fraction(magnitude) / int(divisor)
    return -value if (match["sign"] == "-") != (match["sign2"] == "-") else value


def _shown(number: Fraction) -> str:
    """A short decimal where there is one."""
    text = str(number) if number.denominator == 1 else f"{float(number):.12g}" if abs(number) < 10**15 else str(number)
    return text if len(text) <= 40 else f"{text[:37]}..."
