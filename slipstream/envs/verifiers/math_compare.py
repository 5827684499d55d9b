"""Whether an answer says the same as the gold answer: rules over `math_answer`'s data, one small function for each kind. Pure.

Equal values are equal however written; order counts in tuples, intervals, matrices and ratios, not in sets and lists of solutions;
an interval equals the inequality that says the same; units may be left out but not changed. Called by `math_grade`.
"""

import re
from dataclasses import replace

from slipstream.envs.verifiers.math_answer import Answer, Based, Bracketed, Clock, Items, Ratio, Relation, SetOf, Value, Words
from slipstream.envs.verifiers.math_functions import Undefined
from slipstream.envs.verifiers.math_names import is_function_equation, is_name, names_of, renamed, same_name, value_of
from slipstream.envs.verifiers.math_ranges import is_range, reals_of
from slipstream.envs.verifiers.math_reading import folded, read_answer
from slipstream.envs.verifiers.math_reals import same_reals
from slipstream.envs.verifiers.math_single import is_vector, on_24_hours, same_digits, same_ratio, same_value
from slipstream.envs.verifiers.math_terms import choose_signs, difference, free_symbols
from slipstream.envs.verifiers.math_text import tidy
from slipstream.envs.verifiers.math_value import equal, is_defined, proportional

MAX_MATCHED = 200  # longer lists are compared in order
_GROUPING = re.compile(r"\d,\d")  # a comma that may group digits, or part two numbers
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


def same_text(gold: str, answer: str) -> bool:
    """Whether two texts state the same answer."""
    left, right = read_answer(gold), read_answer(answer)
    if _same_as_words(gold, answer, left, right) or same(left, right):
        return True
    if _counts(left) == _counts(right) or not _GROUPING.search(f"{gold} {answer}"):
        return False
    if isinstance(left, Value) and _DECIMAL_COMMA.fullmatch(answer):
        return same(left, read_answer(answer.replace(",", ".")))
    return same(*(_ordered(read_answer(text, commas_group=False)) for text in (gold, answer)))


def same(gold: Answer, answer: Answer) -> bool:
    """Whether two answers are the same."""
    gold, answer = _settled(gold, answer), _settled(answer, gold)
    if is_range(gold) or is_range(answer):
        verdict = _same_range(gold, answer)
        if verdict is not None:
            return verdict
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(gold, answer)
    golds, answers = _expanded(gold), _expanded(answer)
    if isinstance(gold, Items) or isinstance(answer, Items) or len(golds) > 1 or len(answers) > 1:
        return _same_items(gold, answer, golds, answers)
    return _same_single(gold, answer)


def _same_as_words(gold: str, answer: str, left: Answer, right: Answer) -> bool:
    """Texts that agree sign by sign, or word by word where they are words."""
    if _closed_up(gold) == _closed_up(answer):
        return not isinstance(left, Value) or is_defined(left.term)
    words = folded(gold)
    return words == folded(answer) and ((len(words) > 2 and words.replace(" ", "").isalpha()) or words in tuple("abcdefghij"))


def _closed_up(text: str) -> str:
    """Without the white space that says nothing: all but what parts two letters or digits."""
    return re.sub(r"(?<![A-Za-z0-9]) +| +(?![A-Za-z0-9])", "", tidy(text))


def _counts(found: Answer) -> int:
    """How many answers it seems to be: differs where one side grouped digits by a comma and the other listed numbers."""
    return len(found.parts) if isinstance(found, Items | Bracketed) else 1


def _ordered(found: Answer) -> Answer:
    """A list that might have been one number: its order counts."""
    return Bracketed(opened="(", closed=")", parts=found.parts) if isinstance(found, Items) and not found.braces else found


def _settled(found: Answer, other: Answer) -> Answer:
    """Without what says nothing: the braces of one, `x in` before a set, the letter or the text of a choice."""
    if isinstance(found, Items) and found.joined == ("choice",):
        letter, rest = found.parts
        return letter if _is_choice_letter(other) else _settled(rest, other)
    if isinstance(found, Items) and found.braces and len(found.parts) == 1:
        return found.parts[0]
    if isinstance(found, Relation) and found.signs == ("in",) and is_name(found.sides[0]):
        return found.sides[1]
    return found


def _is_choice_letter(found: Answer) -> bool:
    return isinstance(found, Value) and found.term.head == "sym" and found.term.name in tuple("ABCDEFGHIJ")


def _same_range(gold: Answer, answer: Answer) -> bool | None:
    """Whether both are the same set of real numbers; None where they are of one shape and one cannot be solved."""
    try:
        one, other = reals_of(gold), reals_of(answer)
        if one and other and (not one[0] or not other[0] or one[0] == other[0]):
            return same_reals(one[1], other[1])
    except Undefined:
        pass
    if type(gold) is not type(answer):
        return False
    return _same_parts(gold, answer) if isinstance(gold, SetOf) and isinstance(answer, SetOf) else None


def _same_parts(gold: SetOf, answer: SetOf) -> bool:
    """Two unions with unknowns in their ends: member by member."""
    return gold.operation == answer.operation and _matches(list(gold.parts), list(answer.parts))


def _same_relation(gold: Answer, answer: Answer) -> bool:
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        if all(sign == "=" for sign in gold.signs + answer.signs):
            return _same_equation(gold, answer)
        return _same_chain(gold, answer) or _same_inequality(gold, answer)
    relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
    assert isinstance(relation, Relation)
    if any(sign != "=" for sign in relation.signs):
        return False
    left, right = relation.sides[0], relation.sides[-1]
    if is_name(left) or (relation is answer and _may_be_dropped(relation)):
        return same(right, other) if relation is gold else same(other, right)
    return False


def _may_be_dropped(relation: Relation) -> bool:
    """Whether the left side of an answer to a question for a value may stand there: it names something, or it is that value."""
    left, right = relation.sides[0], relation.sides[-1]
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return isinstance(left, Words | Ratio | Bracketed)
    return (bool(free_symbols(left.term)) and not free_symbols(right.term)) or equal(left.term, right.term)


def _same_equation(gold: Relation, answer: Relation) -> bool:
    left, right = gold.sides[0], gold.sides[-1]
    other_left, other_right = answer.sides[0], answer.sides[-1]
    if is_name(left) and is_name(other_left):
        other_left, other_right = renamed(left, other_left, other_right)
        if same_name(left, other_left) and same(right, other_right):
            return True
    sides = [side.term for side in (left, right, other_left, other_right) if isinstance(side, Value)]
    return len(sides) == 4 and proportional(difference(sides[0], sides[1]), difference(sides[2], sides[3]))


def _same_chain(gold: Relation, answer: Relation) -> bool:
    """Side by side, or read from the other end."""
    flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    turned = Relation(sides=answer.sides[::-1], signs=tuple(flipped.get(sign, sign) for sign in answer.signs[::-1]))
    for other in (answer, turned):
        if gold.signs == other.signs and all(same(*pair) for pair in zip(gold.sides, other.sides, strict=True)):
            return True
    return False


def _same_inequality(gold: Relation, answer: Relation) -> bool:
    """Two inequalities in several unknowns: one is a positive multiple of the other."""
    if len(gold.signs) != 1 or len(answer.signs) != 1:
        return False
    sides = [side.term for side in (*gold.sides, *answer.sides) if isinstance(side, Value)]
    if len(sides) != 4 or gold.signs[0].strip("<>") != answer.signs[0].strip("<>"):
        return False
    same_way = gold.signs[0][0] == answer.signs[0][0]
    one, other = difference(sides[0], sides[1]), difference(sides[2], sides[3])
    return proportional(one, other if same_way else difference(sides[3], sides[2]), positive=True)


def _expanded(found: Answer) -> list[Answer]:
    """The single answers of a list, each choice of a plus-minus sign by itself."""
    if isinstance(found, Items):
        return [single for part in found.parts for single in _expanded(part)]
    if isinstance(found, Value):
        return [replace(found, term=term) for (term,) in choose_signs((found.term,))]
    if isinstance(found, Bracketed) and all(isinstance(part, Value) for part in found.parts):
        choices = choose_signs(tuple(part.term for part in found.parts if isinstance(part, Value)))
        return [replace(found, parts=tuple(Value(term=term) for term in choice)) for choice in choices] if len(choices) > 1 else [found]
    if isinstance(found, Relation) and all(sign == "=" for sign in found.signs):
        values = _expanded(found.sides[-1])
        return [replace(found, sides=(*found.sides[:-1], value)) for value in values] if len(values) > 1 else [found]
    return [found]


def _same_items(gold: Answer, answer: Answer, golds: list[Answer], answers: list[Answer]) -> bool:
    if isinstance(gold, Bracketed) or isinstance(answer, Bracketed):
        return _same_without_brackets(gold, answer, golds, answers)
    golds, answers = _without_names(golds, answers)
    if _is_set(gold) and _is_set(answer):
        golds, answers = _distinct(golds), _distinct(answers)
    return _matches(golds, answers)


def _is_set(found: Answer) -> bool:
    return isinstance(found, Items) and found.braces


def _same_without_brackets(gold: Answer, answer: Answer, golds: list[Answer], answers: list[Answer]) -> bool:
    """A tuple against its entries without brackets, in order; sets are no tuples."""
    if _is_set(gold) or _is_set(answer):
        return len(golds) == len(answers) and _matches(golds, answers)
    left, right = (
        found.parts if isinstance(found, Bracketed) and len(several) == 1 else tuple(several)
        for found, several in ((gold, golds), (answer, answers))
    )
    if len(golds) > 1 and len(answers) > 1:
        return _matches(golds, answers)
    if any(isinstance(found, Bracketed) and found.opened == "[" for found in (gold, answer)):
        return False
    left, right = ([value_of(part) for part in parts] for parts in (left, right))
    return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))


def _without_names(golds: list[Answer], answers: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Names of unknowns stay only where both sides give them and they tell the values apart."""
    names, other_names = names_of(golds), names_of(answers)
    if names and other_names and len(names) > 1 and names == other_names:
        return golds, answers
    if names and other_names and len(names) > 1 and len(other_names) > 1:
        return golds, answers
    if any(is_function_equation(found) for found in golds) and any(is_function_equation(found) for found in answers):
        return golds, answers
    return [value_of(found) for found in golds], [value_of(found) for found in answers]


def _distinct(found: list[Answer]) -> list[Answer]:
    kept: list[Answer] = []
    for single in found[:MAX_MATCHED]:
        if not any(same(single, other) for other in kept):
            kept.append(single)
    return kept + found[MAX_MATCHED:]


def _matches(golds: list[Answer], answers: list[Answer]) -> bool:
    """One to one, in any order."""
    if len(golds) != len(answers):
        return False
    if len(golds) > MAX_MATCHED:
        return all(same(*pair) for pair in zip(golds, answers, strict=True))
    left = list(answers)
    for gold in golds:
        place = next((place for place, answer in enumerate(left) if same(gold, answer)), None)
        if place is None:
            return False
        left.pop(place)
    return True


def _same_single(gold: Answer, answer: Answer) -> bool:
    if isinstance(gold, Value) and isinstance(answer, Value):
        return same_value(gold, answer)
    if isinstance(gold, Words) and isinstance(answer, Words):
        return bool(gold.text) and gold.text == answer.text
    if isinstance(gold, Bracketed) and isinstance(answer, Bracketed):
        return _same_bracketed(gold, answer)
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Bracketed) and isinstance(other, Value):
            return is_vector(other.term, one)
        if isinstance(one, Ratio):
            return same_ratio(one, other)
        if isinstance(one, Based):
            return same_digits(one, other)
    return isinstance(gold, Clock) and isinstance(answer, Clock) and on_24_hours(gold) == on_24_hours(answer)


def _same_bracketed(gold: Bracketed, answer: Bracketed) -> bool:
    if len(gold.parts) != len(answer.parts):
        return False
    if len(gold.parts) == 2 and _edges(gold) != _edges(answer):
        return False
    return all(same(*pair) for pair in zip(gold.parts, answer.parts, strict=True))


def _edges(found: Bracketed) -> tuple[bool, bool]:
    """Whether each end belongs to it, were it an interval."""
    return found.opened == "[", found.closed == "]"
