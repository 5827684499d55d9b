"""Left sides that only name what stands on the right: x, f(x), (x, y), NO/BO, an angle, a word. Pure; called by `math_compare`."""

from dataclasses import replace

from slipstream.envs.verifiers.math_answer import Answer, Bracketed, Items, Ratio, Relation, Value, Words
from slipstream.envs.verifiers.math_functions import FUNCTIONS
from slipstream.envs.verifiers.math_ranges import symbol_name
from slipstream.envs.verifiers.math_terms import free_symbols, key, substitute, symbol


def is_name(found: Answer) -> bool:
    """Whether a left side only names what the right side is: x, f(x), (x, y), NO/BO, an angle, a word."""
    if isinstance(found, Words | Ratio):
        return True
    if isinstance(found, Bracketed | Items):
        return all(is_name(part) for part in found.parts)
    if not isinstance(found, Value):
        return False
    term = found.term
    if term.head == "sym" or (term.head == "call" and (term.name not in FUNCTIONS or term.args[0].head == "sym")):
        return True
    names = free_symbols(term)
    return bool(names) and all(name[0].isupper() or name.startswith(("angle", "overline", "triangle")) for name in names)


def bound(found: Answer) -> str | None:
    term = found.term if isinstance(found, Value) else None
    applied = term is not None and term.head == "call" and term.name not in FUNCTIONS and len(term.args) == 1 and term.args[0].head == "sym"
    return term.args[0].name if term is not None and applied else None


def renamed(left: Answer, other_left: Answer, other_right: Answer) -> tuple[Answer, Answer]:
    """f(m) = 2m as f(n) = 2n: the argument of a function may have any name."""
    variable, other = bound(left), bound(other_left)
    if variable is None or other is None or not (isinstance(other_left, Value) and isinstance(other_right, Value)):
        return other_left, other_right
    return tuple(replace(side, term=substitute(side.term, other, symbol(variable))) for side in (other_left, other_right))  # type: ignore[return-value]


def same_name(one: Answer, other: Answer) -> bool:
    """Names agree, or are of different sorts: y and f(x), S and the word area."""
    if not (isinstance(one, Value) and isinstance(other, Value)):
        return True
    return key(one.term) == key(other.term) or one.term.head != other.term.head


def value_of(found: Answer) -> Answer:
    """Without `x =` in front."""
    if isinstance(found, Relation) and set(found.signs) == {"="} and is_name(found.sides[0]):
        return found.sides[-1]
    return found


def names_of(found: list[Answer]) -> set[str]:
    """What the values are called, indices aside; empty where one has no name."""
    if not all(isinstance(single, Relation) and set(single.signs) == {"="} and is_name(single.sides[0]) for single in found):
        return set()
    return {symbol_name(single.sides[0]).partition("_")[0] or repr(single.sides[0]) for single in found if isinstance(single, Relation)}


def is_function_equation(found: Answer) -> bool:
    return isinstance(found, Relation) and bound(found.sides[0]) is not None
