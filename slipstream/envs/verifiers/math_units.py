"""Units of measure: what a word after a number means, and when two quantities are of one kind. Tables and pure functions.

A word that is no known unit (`apples`) is a kind of its own. Called by `math_answer` and `math_compare`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from slipstream.envs.verifiers.math_text import names

_TABLE = """
length 1 m meter metre meters metres
length 1000 km kilometer kilometre kilometers kilometres
length 1/100 cm centimeter centimetre centimeters centimetres
length 1/1000 mm millimeter millimetre millimeters millimetres
length 1/10 dm decimeter decimetre decimeters decimetres
length 381/1250 ft foot feet
length 127/5000 in inch inches
length 1143/1250 yd yds yard yards
length 201168/125 mi mile miles
time 1 s sec secs second seconds
time 60 min mins minute minutes
time 3600 h hr hrs hour hours
time 86400 day days
time 604800 wk week weeks
month 1 month months
month 12 yr yrs year years
mass 1 g gram grams gm
mass 1000 kg kilogram kilograms
mass 1/1000 mg milligram milligrams
mass 1000000 ton tons tonne tonnes
pound 1 lb lbs pound pounds
pound 1/16 oz ounce ounces
volume 1 L l liter litre liters litres
volume 1/1000 mL ml milliliter millilitre milliliters millilitres
dollar 1 dollar dollars usd USD
dollar 1/100 cent cents
euro 1 euro euros EUR
yuan 1 yuan RMB
rupee 1 rupee rupees Rs
yen 1 yen
degree 1 degree degrees deg
radian 1 radian radians rad
percent 1 percent percentage pct
"""
_UNITS: dict[str, tuple[str, Fraction]] = {}
for _line in _TABLE.strip().splitlines():
    _kind, _factor, *_names = _line.split()
    _UNITS |= {name: (_kind, Fraction(_factor)) for name in _names}
_SINGLE_LETTERS = names("m s h g L l")
_SAYS_NOTHING = names("unit units of the a an in approximately about exactly total altogether each long away more")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SPEEDS = {"mph": "mile", "kph": "km", "kmh": "km", "kmph": "km"}
_RAISED = {"squared": 2, "cubed": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A product of kinds. Worked example: km/h is kinds {(length, 1), (time, -1)}, factor 1000/3600."""

    kinds: frozenset[tuple[str, int]] = frozenset()
    factor: Fraction = Fraction(1)
    words: frozenset[str] = frozenset()  # what is no known unit

    def __bool__(self) -> bool:
        return bool(self.kinds or self.words)


NO_UNIT = Unit()


def is_unit(word: str) -> bool:
    """Whether a word is the name of a unit, by itself."""
    return word in _UNITS or word.lower() in _UNITS or word.lower() in _SPEEDS


def is_single_letter_unit(word: str) -> bool:
    return word in _SINGLE_LETTERS


def known(kind: str, factor: Fraction = Fraction(1)) -> Unit:
    """A unit by its kind."""
    return Unit(kinds=frozenset({(kind, 1)}), factor=factor)


def unit_of(parts: Iterable[tuple[str, int]]) -> Unit:
    """The unit of words with their exponents, e.g. (("square", 1), ("cm", 1)) or (("km", 1), ("h", -1))."""
    kinds: dict[str, int] = {}
    factor, words, power = Fraction(1), set[str](), 1
    for word, exponent in [part for written in parts for part in _spelled_out(*written)]:
        name = word if word in _UNITS else word.lower().rstrip(".")
        if name in _POWERS:
            power = _POWERS[name]
        elif name in _UNITS:
            kind, size = _UNITS[name]
            kinds[kind] = kinds.get(kind, 0) + exponent * power
            factor *= size ** (exponent * power)
            power = 1
        elif name not in _SAYS_NOTHING and name not in _RAISED:
            words.add(_singular(name))
    return Unit(kinds=frozenset((kind, n) for kind, n in kinds.items() if n), factor=factor, words=frozenset(words))


def power_word(word: str) -> int | None:
    """2 for "squared", 3 for "cubed", else None."""
    return _RAISED.get(word.lower())


def same_kind(one: Unit, other: Unit) -> bool:
    """Whether quantities in these units can be compared: either says nothing, or both name the same."""
    if not one or not other:
        return True
    return one.kinds == other.kinds and (one.words <= other.words or other.words <= one.words)


def _spelled_out(word: str, exponent: int) -> list[tuple[str, int]]:
    """mph as miles per hour."""
    if word.lower() not in _SPEEDS:
        return [(word, exponent)]
    return [(_SPEEDS[word.lower()], exponent), ("hour", -exponent)]


def _singular(word: str) -> str:
    for ending, shorter in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if word.endswith(ending) and len(word) > len(ending) + 1 and not word.endswith("ss"):
            return word.removesuffix(ending) + shorter
    return word
