"""Answers as sets of real numbers: which can only be such, and which numbers they hold. Pure; called by `math_compare`."""

from slipstream.envs.verifiers.math_answer import Answer, Bracketed, Items, Relation, SetOf, Value
from slipstream.envs.verifiers.math_reals import ALL, EMPTY, Reals, Span, chain, complement, intersection, point, union
from slipstream.envs.verifiers.math_terms import choose_signs, free_symbols, has_symbol, symbol
from slipstream.envs.verifiers.math_text import names

INEQUALITIES = names("< > <= >= !=")


def is_range(found: Answer) -> bool:
    """Whether it can only be a set of real numbers."""
    if isinstance(found, Relation):
        return any(sign in INEQUALITIES for sign in found.signs)
    if isinstance(found, Bracketed):
        return len(found.parts) == 2 and (
            (found.opened == "[") != (found.closed == "]")
            or any(isinstance(part, Value) and has_symbol(part.term, "infty") for part in found.parts)
        )
    if isinstance(found, Items):
        return not found.braces and any(isinstance(part, Relation) and is_range(part) for part in found.parts)
    return isinstance(found, SetOf) or (isinstance(found, Value) and found.term in (symbol("mathbb R"), symbol("emptyset")))


def reals_of(found: Answer) -> tuple[str, Reals] | None:
    """The name of the unknown ("" where there is none) and the set; None where it is no set of real numbers."""
    if isinstance(found, Value):
        return _reals_of_value(found)
    if isinstance(found, Bracketed) and len(found.parts) == 2:
        low, high = found.parts
        if not (isinstance(low, Value) and isinstance(high, Value)):
            return None
        return "", union([Span(low=low.term, high=high.term, with_low=found.opened == "[", with_high=found.closed == "]")])
    if isinstance(found, Relation):
        return _reals_of_relation(found)
    if isinstance(found, SetOf):
        return _reals_of_operation(found)
    if isinstance(found, Items):
        return _reals_of_items(found)
    return None


def _reals_of_value(found: Value) -> tuple[str, Reals] | None:
    if found.term == symbol("mathbb R"):
        return "", ALL
    if found.term == symbol("emptyset"):
        return "", EMPTY
    return None if free_symbols(found.term) else ("", union(point(term) for (term,) in choose_signs((found.term,))))


def _reals_of_relation(found: Relation) -> tuple[str, Reals] | None:
    if found.signs == ("in",):
        inner = reals_of(found.sides[1])
        return (symbol_name(found.sides[0]), inner[1]) if inner else None
    if any(not isinstance(side, Value) for side in found.sides) or any(sign not in INEQUALITIES | {"="} for sign in found.signs):
        return None
    terms = [side.term for side in found.sides if isinstance(side, Value)]
    return chain(terms, found.signs)


def _reals_of_operation(found: SetOf) -> tuple[str, Reals] | None:
    parts = [reals_of(part) for part in found.parts]
    if any(part is None for part in parts):
        return None
    sets = [part[1] for part in parts if part]
    result = sets[0]
    for other in sets[1:]:
        if found.operation == "cup":
            result = union((*result, *other))
        else:
            result = intersection(result, other if found.operation == "cap" else complement(other))
    return "", result


def _reals_of_items(found: Items) -> tuple[str, Reals] | None:
    """Relations joined by `or` are a union, by `and` an intersection; by a comma an intersection where there is one."""
    parts = [reals_of(part) for part in found.parts]
    names = {part[0] for part in parts if part and part[0]}
    if any(part is None for part in parts) or len(names) > 1:
        return None
    sets = [part[1] for part in parts if part]
    together = sets[0]
    for other in sets[1:]:
        together = intersection(together, other)
    apart = union(span for members in sets for span in members)
    all_relations = all(isinstance(part, Relation) for part in found.parts)
    use_together = all_relations and "or" not in found.joined and ("and" in found.joined or together)
    return next(iter(names), ""), together if use_together else apart


def symbol_name(found: Answer) -> str:
    return found.term.name if isinstance(found, Value) and found.term.head == "sym" else ""
