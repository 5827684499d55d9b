"""Numbers with what stands beside them: currencies in front, units behind, several that add up. Pure; called by `math_reading`."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from slipstream.envs.verifiers.math_answer import Value
from slipstream.envs.verifiers.math_reader import Reader
from slipstream.envs.verifiers.math_terms import Term, number, product, total
from slipstream.envs.verifiers.math_text import names
from slipstream.envs.verifiers.math_tokens import Token, Unreadable
from slipstream.envs.verifiers.math_units import NO_UNIT, Unit, is_single_letter_unit, known, power_word, unit_of

_NO_UNITS = names("is are was not no never maybe perhaps if else unless wrong false true but")  # `8 is wrong` is no quantity
_CURRENCIES = {"$": "dollar", "euro": "euro", "pound": "pound", "yen": "yen"}


def quantity(tokens: Sequence[Token]) -> Value | None:
    """An expression with a currency before it or a unit behind it; several that add up, as 2 hours 30 minutes."""
    pieces: list[tuple[Term, Unit]] = []
    rest = list(tokens)
    while rest:
        piece, rest = _one_quantity(rest, bool(pieces))
        if piece is None:
            return None
        pieces.append(piece)
    if len(pieces) == 1:
        return Value(term=pieces[0][0], unit=pieces[0][1])
    if not pieces or len({unit.kinds for _, unit in pieces}) != 1 or not pieces[0][1].kinds:
        return None
    terms = tuple(product(number(unit.factor), term) for term, unit in pieces)
    return Value(term=total(*terms), unit=replace(pieces[0][1], factor=Fraction(1)))


def _one_quantity(tokens: list[Token], follows: bool) -> tuple[tuple[Term, Unit] | None, list[Token]]:
    """The first number with its unit, and what is left."""
    sign = tokens[:1] if tokens[0].text == "-" else []
    money = tokens[len(sign)].text if len(tokens) > len(sign) else ""
    currency = known(_CURRENCIES[money]) if money in _CURRENCIES and tokens[len(sign)].kind in ("sign", "command") else NO_UNIT
    reader = Reader([*sign, *tokens[len(sign) + 1 :]] if currency else tokens, degrees_are_units=True)
    try:
        term = reader.expression()
    except Unreadable:
        return None, tokens
    rest = list(reader.tokens[reader.place :])
    unit, rest = _unit(rest, follows)
    if unit is None:
        return None, tokens
    return (term, unit if unit else currency), rest


def _unit(tokens: list[Token], follows: bool) -> tuple[Unit | None, list[Token]]:
    """The unit at the start of the tokens, and what is left; None where what comes is no unit."""
    if not tokens:
        return NO_UNIT, []
    if tokens[0].text in ("%", "'", "^", "$", "euro") and tokens[0].kind in ("sign", "command"):
        return _sign_unit(tokens, follows)
    parts: list[tuple[str, int]] = []
    place, side = 0, 1
    while place < len(tokens):
        token = tokens[place]
        if token.kind == "word" and token.text.lower() in _NO_UNITS:
            return None, tokens
        if token.kind == "word":
            if token.text.lower() == "per":
                side = -1
            elif power_word(token.text) and parts:
                parts[-1] = (parts[-1][0], side * (power_word(token.text) or 1))
            else:
                parts.append((token.text, side))
        elif token.text == "/" and parts:
            side = -1
        elif token.text == "^" and parts:
            exponent, place = _unit_exponent(tokens, place + 1)
            if exponent is None:
                return None, tokens
            parts[-1] = (parts[-1][0], side * exponent)
        elif token.kind == "symbol" and side == -1 and is_single_letter_unit(token.text):
            parts.append((token.text, side))
        elif token.text == "." or token.text in ("cdot", "*", "-"):
            pass
        elif (token.kind == "open" and token.text == "(") or (token.kind == "number" and parts):
            break
        else:
            return None, tokens
        place += 1
    rest = tokens[place:]
    if rest and rest[0].text == "(":
        rest = [] if all(token.kind in ("word", "open", "close") for token in rest) else rest
        if rest:
            return None, tokens
    return unit_of(parts), rest


def _sign_unit(tokens: list[Token], follows: bool) -> tuple[Unit | None, list[Token]]:
    """Percent, degrees, primes and a currency behind the number."""
    sign = tokens[0].text
    if sign == "%":
        return known("percent"), tokens[1:]
    if sign in ("$", "euro"):
        return known(_CURRENCIES[sign]), tokens[1:]
    if sign == "'":
        double = len(tokens) > 1 and tokens[1].text == "'"
        if follows:
            return known("degree", Fraction(1, 3600 if double else 60)), tokens[1 + double :]
        return unit_of((("inch" if double else "foot", 1),)), tokens[1 + double :]
    size = 4 if len(tokens) > 1 and tokens[1].text == "{" else 2
    if not any(token.text == "circ" for token in tokens[1:size]):
        return None, tokens
    rest = tokens[size:]
    scale = (
        {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}.get(rest[0].text.lower()) if rest else None
    )
    if scale:
        return Unit(kinds=frozenset({(scale, 1)})), rest[1:]
    return known("degree"), rest


def _unit_exponent(tokens: list[Token], place: int) -> tuple[int | None, int]:
    """The exponent at `place`, and the place of its last token."""
    braced = place < len(tokens) and tokens[place].text == "{"
    place += braced
    sign = 1
    if place < len(tokens) and tokens[place].text == "-":
        sign, place = -1, place + 1
    if place >= len(tokens) or tokens[place].kind != "number" or len(tokens[place].text) > 1:
        return None, place
    return sign * int(tokens[place].text), place + braced
