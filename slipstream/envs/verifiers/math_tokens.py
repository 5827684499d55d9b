r"""From tidy text to tokens: numbers with their digits grouped, letters or words, commands, brackets, separators. Pure.

`7,425,000` is one number where commas may group digits, `xy` is two symbols, `\text{xy}` and `Evelyn` are words. Called by `math_answer`.
"""

import re
from dataclasses import dataclass

from slipstream.envs.verifiers.math_text import NEW_ROW, names, tidy
from slipstream.envs.verifiers.math_units import is_unit

MAX_TOKENS = 20_000
FUNCTIONS = names(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh ln log lg exp sqrt cbrt gcd lcm max min abs "
    "floor ceil Re Im arg det binom frac operatorname"
)
SHORT = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "ceiling": "ceil", "cosec": "csc"}
CONSTANTS = {"pi": "pi", "infinity": "infty", "inf": "infty", "infty": "infty", "oo": "infty", "theta": "theta", "alpha": "alpha"}
CONSTANTS |= {"beta": "beta", "gamma": "gamma", "lambda": "lambda", "phi": "phi", "omega": "omega"}
RELATIONS = {"=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "in": "in", "approx": "~", "equiv": "==", "sim": "sim"}
SEPARATORS = {",": ",", ";": ";", "or": "or", "and": "and"}
TEXT_STYLES = names("text textbf textit textrm textnormal texttt textsf textsc textup mbox hbox emph underline")
MATH_STYLES = names("mathbf mathrm mathit mathsf mathcal boldsymbol bm operatorname mathnormal pmb mathfrak boxed fbox")
OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", "langle": "rangle", "lfloor": "rfloor", "lceil": "rceil"}
CLOSING = frozenset(OPENING.values())
SHORT_WORDS = names("one two six ten odd yes no all per the is are not")
ORDINALS = frozenset(("st", "nd", "rd", "th"))

_GROUPED = r"\d{1,3}(?:\{,\}\d{3})+(?!\d)"
_COMMAS = r"(?<![\d,.])(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?!\d|,\d)"
_OTHERS = r"\d{1,3}(?:'\d{3})+(?!\d)|(?<![\d.] )(?<!\d)\d{1,3}(?: \d{3})+(?! ?\d)"
_DIGITS = r"\d+"
_TAIL = r"(?:\.\d*\\(?:overline|bar|dot)\s*\{\d+\}|\.\d+)?(?:[eE][-+]?\d+(?![A-Za-z\d.]))?"
_REST = (
    r"|(?P<command>\\[A-Za-z]+)|(?P<escaped>\\[^A-Za-z])|(?P<half>[aApP]\.\s?[mM]\b\.?)|(?P<letters>[A-Za-z]+)|(?P<space>\s+)|(?P<other>.)"
)
_POINT = r"|\.\d+(?:[eE][-+]?\d+)?"
_WITH_COMMAS = re.compile(rf"(?P<number>(?:{_GROUPED}|{_COMMAS}|{_OTHERS}|{_DIGITS}){_TAIL}{_POINT}){_REST}", re.DOTALL)
_WITHOUT = re.compile(rf"(?P<number>(?:{_GROUPED}|{_OTHERS}|{_DIGITS}){_TAIL}{_POINT}){_REST}", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+(?:[.'-][^\W\d_]+)*")
_UNIT_TEXT = re.compile(r"\s*[A-Za-z]+(?:\s*[/ ]\s*[A-Za-z]+)+\s*")  # m/s, square cm
_TEXT_NUMBER = re.compile(rf"(?:{_GROUPED}|{_COMMAS}|{_DIGITS})(?:\.\d+)?")


class Unreadable(ValueError):
    """The text is no answer that can be read; it can only be compared as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One sign. Worked example: `\\sqrt` is kind "command", text "sqrt"; `12` is kind "number"."""

    kind: str  # number, symbol, word, command, sign, relation, separator, open, close
    text: str
    in_text: bool = False  # written inside \text{} or the like
    spaced: bool = False  # white space stands before it


def tokenize(text: str, *, commas_group: bool = True) -> list[Token]:
    """The tokens of a text as written. Raises Unreadable where there are too many."""
    return _Tokenizer(commas_group=commas_group).run(tidy(text))


class _Tokenizer:
    def __init__(self, *, commas_group: bool) -> None:
        self.commas_group = commas_group
        self.tokens: list[Token] = []
        self.depth = 0  # of brackets in which commas separate
        self.spaced = False

    def run(self, text: str) -> list[Token]:
        place = 0
        while place < len(text):
            pattern = _WITH_COMMAS if self.commas_group and not self.depth else _WITHOUT
            match = pattern.match(text, place)
            assert match  # the last alternative takes any sign
            assert match.lastgroup
            place = match.end()
            if match.lastgroup == "space":
                self.spaced = True
                continue
            place = self.take(match.lastgroup, match[0], text, place)
            if len(self.tokens) > MAX_TOKENS:
                raise Unreadable("too long")
        return self.tokens

    def add(self, kind: str, text: str, *, in_text: bool = False) -> None:
        self.tokens.append(Token(kind=kind, text=text, in_text=in_text, spaced=self.spaced))
        self.spaced = False

    def take(self, group: str, found: str, text: str, place: int) -> int:
        """Add what was found; the place to go on from."""
        if group == "number":
            self.add("number", found)
        elif group == "half":
            self.add("word", found.replace(".", "").replace(" ", "").lower(), in_text=True)
        elif group == "letters":
            self.letters(found)
        elif group == "command":
            return self.command(found[1:], text, place)
        elif group == "escaped":
            self.sign(found if found in (r"\{", r"\}") else found[1:])
        else:
            self.sign(found)
        return place

    def letters(self, run: str) -> None:
        """A name that is known, a word, or symbols that are multiplied."""
        run = SHORT.get(run, run)
        after_number = bool(self.tokens) and self.tokens[-1].kind in ("number", "close")
        if run in FUNCTIONS:
            self.add("command", run)
        elif run in CONSTANTS or run.lower() in ("infinity", "pi"):
            self.add("symbol", CONSTANTS[run if run in CONSTANTS else run.lower()])
        elif run.lower() in ("or", "and"):
            self.add("separator", run.lower())
        elif (
            (len(run) > 3 and not run.isupper())
            or run.lower() in SHORT_WORDS
            or (len(run) > 1 and after_number and (is_unit(run) or run in ORDINALS))
        ):
            self.add("word", run)
        else:
            for letter in run:
                self.add("symbol", letter)

    def command(self, name: str, text: str, place: int) -> int:
        if name in TEXT_STYLES or name in MATH_STYLES:
            content, end = group_at(text, place)
            if content is not None:
                self.styled(name, content)
                return end
        elif name == "mathbb":
            content, end = group_at(text, place)
            self.add("symbol", f"mathbb {content or ''}")
            return end
        elif name in RELATIONS:
            self.add("relation", RELATIONS[name])
        elif name in OPENING or name in CLOSING:
            self.sign(name)
        elif name == "iff":
            self.add("separator", "or")
        else:
            self.add("command", SHORT.get(name, name))
        return place

    def styled(self, name: str, content: str) -> None:
        """The inside of `\\text{...}` is words; of `\\mathbf{...}` words where it is letters, else as if it stood bare."""
        if name in TEXT_STYLES or (name == "mathrm" and _UNIT_TEXT.fullmatch(content)):
            self.words(content)
        elif content.strip().isalpha() and (len(content.strip()) > 1 or name == "mathrm"):
            self.words(content) if content.strip() not in FUNCTIONS else self.letters(content.strip())
        else:
            inner = _Tokenizer(commas_group=self.commas_group)
            inner.depth = self.depth
            self.tokens += inner.run(content)

    def words(self, content: str) -> None:
        place = 0
        while place < len(content):
            if content[place].isspace():
                self.spaced, place = True, place + 1
            elif match := _WORD.match(content, place):
                word = match[0]
                separator = word.lower() in ("or", "and")
                self.add("separator" if separator else "word", word.lower() if separator else word, in_text=not separator)
                place = match.end()
            elif (match := _TEXT_NUMBER.match(content, place)) and not content[place:].startswith("\\"):
                self.add("number", match[0])
                place = match.end()
            elif content[place] == "\\" or content[place] == "{" or content[place] == "^":
                inner = _Tokenizer(commas_group=self.commas_group)
                self.tokens += inner.run(content[place:])
                place = len(content)
            else:
                self.sign(content[place])
                place += 1

    def sign(self, sign: str) -> None:
        if sign in OPENING:
            self.depth += sign != "{"
            self.add("open", sign)
        elif sign in CLOSING:
            self.depth = max(0, self.depth - (sign != "}"))
            self.add("close", sign)
        elif sign in SEPARATORS:
            self.add("separator", sign)
        elif sign in RELATIONS:
            self.add("relation", RELATIONS[sign])
        else:
            self.add("sign", r"\\" if sign == NEW_ROW else sign)


def group_at(text: str, place: int) -> tuple[str | None, int]:
    """The inside of the brace group that begins at `place` (after white space), and where it ends; one left open ends with the text."""
    while place < len(text) and text[place].isspace():
        place += 1
    if place >= len(text) or text[place] != "{":
        return None, place
    depth, at = 0, place
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
        if depth == 0:
            return text[place + 1 : at - 1], at
    return text[place + 1 :], len(text)
