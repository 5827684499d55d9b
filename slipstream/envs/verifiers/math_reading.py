"""From the text of an answer to what it is: the grammar above expressions. Pure.

Splits at commas, `or`, relations, unions and colons outside brackets, and gives the rest to `math_reader`. What it cannot read is
`Words`, compared as text. Called by `math_compare` and `math_extract`.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from slipstream.envs.verifiers.math_answer import Answer, Based, Bracketed, Clock, Items, Ratio, Relation, SetOf, Value, Words
from slipstream.envs.verifiers.math_quantity import quantity
from slipstream.envs.verifiers.math_reader import Reader
from slipstream.envs.verifiers.math_terms import INFINITY, Term, negative, number, symbol
from slipstream.envs.verifiers.math_text import names
from slipstream.envs.verifiers.math_tokens import Token, Unreadable, tokenize

_ALL_REALS = {"all real numbers", "all reals", "real numbers", "reals", "any real number", "all real number", "the set of all real numbers"}
_NOTHING = {"no solution", "no solutions", "empty set", "no real solution", "no real solutions", "the empty set"}
_COUNTED = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = _COUNTED.split()
_FRACTION_WORDS = {"one half": (1, 2), "one third": (1, 3), "two thirds": (2, 3), "one quarter": (1, 4), "three quarters": (3, 4)}
_FRACTION_WORDS |= {"one fourth": (1, 4), "three fourths": (3, 4), "one fifth": (1, 5), "half": (1, 2)}
_LEADING = names(
    "the an final correct answer answers solution solutions value values result is are be equals equal to exactly about "
    "approximately so therefore thus option choice hence minimum maximum total of"
)
_TRAILING_SIGNS = names(". , ; ! :")
_BASE_WORDS = {word: str(n) for n, word in enumerate(_NUMBER_WORDS)}


def read_answer(text: str, *, commas_group: bool = True) -> Answer:
    """The answer that a text states. Never raises: what cannot be read is `Words`."""
    try:
        return _read(_peeled(tokenize(text, commas_group=commas_group)))
    except Unreadable:
        return Words(text=folded(text))


def folded(text: str) -> str:
    """The text without markup, capitals, articles and outer punctuation, for a comparison as text."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname|textrm|textnormal)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[,;:! ]|[$~{}*`]", " ", text)
    words = text.casefold().split()
    while words and words[0] in ("a", "an", "the"):
        words = words[1:]
    return " ".join(words).strip(" .,;:!?\"'")


def _peeled(tokens: list[Token]) -> list[Token]:
    """Without doubled brackets round everything, however many: ((5)) is (5)."""
    partner, opened = dict[int, int](), list[int]()
    for place, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(place)
        elif token.kind == "close" and opened:
            partner[opened.pop()] = place
    start, end = 0, len(tokens)
    while (
        partner.get(start) == end - 1
        and partner.get(start + 1) == end - 2
        and tokens[start].text in "({"
        and tokens[start + 1].text in "({"
    ):
        start, end = start + 1, end - 1
    return tokens[start:end]


def _read(tokens: Sequence[Token]) -> Answer:
    """Several answers or one."""
    tokens = _without_outer_noise(tokens)
    if len(tokens) > 2 and tokens[0].text == "]" and tokens[-1].text == "[":
        return _read_one(tokens)
    pieces, joined = _split(tokens, lambda token: token.kind == "separator")
    kept = [piece for piece in pieces if piece]
    if len(kept) > 1:
        signs = tuple(sign for sign, piece in zip(joined, pieces[1:], strict=True) if piece)
        return Items(parts=tuple(_read_one(piece) for piece in kept), joined=signs)
    return _read_one(kept[0] if kept else [])


def _read_one(tokens: Sequence[Token]) -> Answer:
    """One answer; the first reading that fits."""
    tokens = _without_outer_noise(tokens)
    for reading in _READINGS:
        found = reading(tokens)
        if found is not None:
            return found
    return _as_words(tokens)


def _without_outer_noise(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without punctuation at the ends, and without `the answer is` in front."""
    start, end = 0, len(tokens)
    while end > start and tokens[end - 1].text in _TRAILING_SIGNS and tokens[end - 1].kind in ("sign", "separator"):
        if tokens[end - 1].text == "!" and end - start > 1 and tokens[end - 2].kind != "word":
            break  # a factorial
        end -= 1
    at = start
    while at < end and (tokens[at].text in (":", "~") or (tokens[at].kind == "word" and tokens[at].text.lower() in _LEADING)):
        at += 1
    return tokens[at:end] if at < end else tokens[start:end]


def _split(tokens: Sequence[Token], splits: Callable[[Token], bool]) -> tuple[list[list[Token]], list[str]]:
    """The pieces between tokens that split, outside brackets, and the texts of those tokens."""
    pieces, joined, depth = [[]], [], 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        if depth <= 0 and splits(token):
            pieces.append([])
            joined.append(token.text)
        else:
            pieces[-1].append(token)
    return pieces, joined


def _words_only(tokens: Sequence[Token]) -> Answer | None:
    if not tokens or any(token.kind != "word" for token in tokens):
        return None
    if len(tokens) == 1 and len(tokens[0].text) == 1:
        return Value(term=symbol(tokens[0].text))
    text = folded(" ".join(token.text for token in tokens))
    if text in _ALL_REALS:
        return Value(term=symbol("mathbb R"))
    if text in _NOTHING:
        return Value(term=symbol("emptyset"))
    if text in ("infinity", "positive infinity", "negative infinity"):
        return Value(term=INFINITY if not text.startswith("neg") else negative(INFINITY))
    if text in _NUMBER_WORDS:
        return Value(term=number(_NUMBER_WORDS.index(text)))
    if text in _FRACTION_WORDS:
        return Value(term=number(Fraction(*_FRACTION_WORDS[text])))
    return Words(text=text)


def _relation(tokens: Sequence[Token]) -> Answer | None:
    sides, signs = _split(tokens, lambda token: token.kind == "relation")
    if not signs:
        return None
    if "~" in signs:  # an exact value and its rounding: the first counts
        first = signs.index("~")
        exact = _read_one(_until_relation(tokens, first)) if any(sides[: first + 1]) else None
        if exact is not None and not (isinstance(exact, Value) and exact.term.head == "sym" and all(sides[: first + 2])):
            return exact
        rounded = _read_one(sides[first + 1])
        return rounded if exact is None else Relation(sides=(exact, rounded), signs=("=",))
    if any(not side for side in sides):
        return _read_one([token for side in sides for token in side]) if signs == ["="] and sides[0] == [] else None
    return Relation(sides=tuple(_read_one(side) for side in sides), signs=tuple(signs))


def _until_relation(tokens: Sequence[Token], count: int) -> Sequence[Token]:
    """The tokens before the relation number `count` (from 0) outside brackets."""
    depth = seen = 0
    for place, token in enumerate(tokens):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth <= 0 and token.kind == "relation":
            if seen == count:
                return tokens[:place]
            seen += 1
    return tokens


def _set_operation(tokens: Sequence[Token]) -> Answer | None:
    for name in ("setminus", "cup", "cap"):
        parts, signs = _split(tokens, lambda token, name=name: token.kind == "command" and token.text == name)
        if signs and all(parts):
            return SetOf(operation=name, parts=tuple(_read_one(part) for part in parts))
    return None


def _bracketed(tokens: Sequence[Token]) -> Answer | None:
    """One bracket round everything: a tuple, an interval, a set, or nothing but a bracket."""
    if len(tokens) < 2 or not _is_one_bracket(tokens):
        return None
    opened, inner, closed = tokens[0].text, tokens[1:-1], tokens[-1].text
    parts, joined = _split(inner, lambda token: token.kind == "separator" and token.text in (",", ";"))
    if opened == r"\{":
        condition, bars = _split(inner, lambda token: token.text in ("|", ":") and token.kind == "sign")
        if len(bars) == 1 and all(condition) and len(condition[0]) < 8:
            return SetOf(operation="where", parts=(_read(condition[1]),))
        kept = [part for part in parts if part]
        return (
            Items(parts=tuple(_read_one(part) for part in kept), braces=True, joined=tuple(joined))
            if kept
            else Value(term=symbol("emptyset"))
        )
    if opened == "{" or (not joined and (opened, closed) in (("(", ")"), ("[", "]"))):
        return _read(inner) if inner else None
    if not joined or not all(parts):
        return None
    return Bracketed(opened=opened, closed=closed, parts=tuple(_read_one(part) for part in parts))


def _is_one_bracket(tokens: Sequence[Token]) -> bool:
    if tokens[0].text == "]" and tokens[-1].text == "[":  # ]1, 3[: open at both ends
        return sum(token.text in "[]" for token in tokens) == 2
    if tokens[0].kind != "open" or tokens[-1].kind != "close" or tokens[0].text in ("lfloor", "lceil"):
        return False
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth == 0:
            return place == len(tokens) - 1
    return False


def _ratio_or_time(tokens: Sequence[Token]) -> Answer | None:
    parts, signs = _split(tokens, lambda token: token.kind == "sign" and token.text == ":")
    if not signs or not all(parts):
        return None
    time = _clock(tokens)
    if time:
        return time
    terms = [_expression(part) for part in parts]
    return Ratio(terms=tuple(terms)) if all(terms) else _read_one(parts[-1]) if parts[0][0].kind == "word" else None  # type: ignore[arg-type]


def _clock(tokens: Sequence[Token]) -> Clock | None:
    """3:30 p.m., 15:30, 12:00: two digits of minutes below sixty, and a half of the day, a zero in front, or an hour that no ratio has."""
    text = "".join(token.text for token in tokens).lower().replace(".", "")
    match = re.fullmatch(r"(\d{1,2}):(\d\d)(?::00)?(am|pm|noon|midnight)?", text)
    if not match or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    hour, minute, half = int(match[1]), int(match[2]), match[3] or ""
    if not half and not match[2].startswith("0"):
        return None
    return Clock(hour=hour, minute=minute, half=half)


def _based(tokens: Sequence[Token]) -> Answer | None:
    """204_5, (204)_5, AB_{12}, 204 base 5."""
    text = " ".join(token.text for token in tokens)
    match = re.fullmatch(r"(- )?\(? ?((?:[0-9A-Z] ?)+?) ?\)? (?:_ (?:\{ )?\(? ?(?:base )?(\w+) ?\)?(?: \})?|(?:in )?base (\w+))", text)
    if not match:
        return None
    sign, digits, base = match[1] or "", match[2].replace(" ", ""), (match[3] or match[4]).lower()
    base = _BASE_WORDS.get(base, base)
    if not base.isdigit() or not (len(digits) > 1 or digits.isdigit()):
        return None
    return Based(digits=sign.strip() + digits, base=base)


def _choice(tokens: Sequence[Token]) -> Answer | None:
    """(C) 12, C. 12, C) 12: the letter of an answer among several, with the answer itself behind it."""
    texts = [token.text for token in tokens[:3]] + ["", "", ""]
    if texts[0] == "(" and texts[2] == ")" and _is_choice(tokens[1]):
        letter, rest = texts[1], tokens[3:]
    elif tokens and _is_choice(tokens[0]) and texts[1] in (")", ".", ":"):
        letter, rest = texts[0], tokens[2:]
    else:
        return None
    if not rest:
        return Value(term=symbol(letter))
    if not tokens[1].in_text and not tokens[0].in_text and rest[0].kind not in ("number", "word"):
        return None
    return Items(parts=(Value(term=symbol(letter)), _read(rest)), joined=("choice",))


def _is_choice(token: Token) -> bool:
    return token.kind in ("symbol", "word") and len(token.text) == 1 and "A" <= token.text <= "J"


def _expression(tokens: Sequence[Token]) -> Term | None:
    """The tokens as one expression to the last."""
    reader = Reader(tokens)
    try:
        term = reader.expression()
    except Unreadable:
        return None
    return term if reader.place == len(reader.tokens) else None


def _plain_expression(tokens: Sequence[Token]) -> Answer | None:
    term = _expression(tokens)
    return Value(term=term) if term else None


def _labelled(tokens: Sequence[Token]) -> Answer | None:
    """Words that introduce a value, `Area is 5`; only after a colon or a verb, so that `not prime` stays whole."""
    for place, token in enumerate(tokens):
        if token.kind not in ("word", "sign", "symbol", "number"):
            return None
        if (token.text.lower() in ("is", "are", "equals") or token.text == ":") and 0 < place < len(tokens) - 1:
            return _read_one(tokens[place + 1 :])
    return None


def _is_brace_of_one(tokens: Sequence[Token], place: int) -> bool:
    """Whether a brace stands round one sign only, where it says nothing."""
    opens = place + 2 < len(tokens) and tokens[place].text == "{" and tokens[place + 2].text == "}"
    closes = place >= 2 and tokens[place].text == "}" and tokens[place - 2].text == "{"
    return (opens or closes) and tokens[place + 1 if opens else place - 1].text not in "{}"


def _as_words(tokens: Sequence[Token]) -> Words:
    """What is no other answer, by its signs."""
    text = ""
    for place, token in enumerate(tokens):
        if _is_brace_of_one(tokens, place):
            continue
        text += (" " if token.kind == "word" else "") + (token.text.lower() if token.kind == "word" else token.text)
    return Words(text=text.strip())


_READINGS: tuple[Callable[[Sequence[Token]], Answer | None], ...] = (
    _words_only,
    _based,
    _choice,
    _relation,
    _set_operation,
    _bracketed,
    quantity,
    _plain_expression,
    _ratio_or_time,
    _labelled,
)
