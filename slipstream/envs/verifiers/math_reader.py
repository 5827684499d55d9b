r"""From tokens to an expression: a recursive descent over LaTeX and plain notation as people mix them. Pure.

Reads `2\sqrt3`, `3 1/2` (a mixed number), `\sin 2x`, `x_1!`, `\frac12`, matrices. What is no expression raises Unreadable.
Called by `math_answer`.
"""

from collections.abc import Sequence

from slipstream.envs.verifiers.math_numbers import MAX_DIGITS, read_number
from slipstream.envs.verifiers.math_terms import Term, call, negative, number, product, quotient, raised, symbol, total
from slipstream.envs.verifiers.math_text import names
from slipstream.envs.verifiers.math_tokens import FUNCTIONS, OPENING, Token, Unreadable

MAX_DEPTH = 4_000
_FUNCTION_LETTERS = frozenset("fghFGH")
_ACCENTS = names("overline bar vec hat tilde widehat overrightarrow angle triangle odot measuredangle dot underline")
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_TRIGONOMETRIC = frozenset(_INVERSES)
_GREEDY = FUNCTIONS - {"sqrt", "cbrt", "frac", "binom", "operatorname", "gcd", "lcm", "max", "min", "abs", "floor", "ceil"}
_MATRICES = names("matrix pmatrix bmatrix vmatrix Bmatrix smallmatrix array")
_NAMES = {"pi", "infty", "theta"} | names(
    "alpha beta gamma delta epsilon zeta eta kappa lambda mu nu xi rho sigma tau phi chi psi omega Gamma Delta Theta Lambda Xi Pi "
    "Sigma Phi Psi Omega ell hbar emptyset ldots"
)
_END = Token(kind="end", text="")


class Reader:
    """Reads expressions from one token list, from left to right."""

    def __init__(self, tokens: Sequence[Token], *, degrees_are_units: bool = False) -> None:
        """With `degrees_are_units`, `^\\circ` outside brackets ends the expression, for the unit behind it to be read."""
        self.tokens = tokens
        self.place = 0
        self.degrees_are_units = degrees_are_units
        self.depth = 0
        self.bars = 0  # open |

    @property
    def next(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _END

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else _END

    def at(self, *texts: str) -> bool:
        return self.next.text in texts and self.next.kind in ("sign", "command", "open", "close")

    def take(self) -> Token:
        if self.place >= len(self.tokens):
            raise Unreadable("it ends too early")
        self.place += 1
        return self.tokens[self.place - 1]

    def expression(self) -> Term:
        """Sums and differences."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("brackets too deep")
        parts = [self.product()]
        while self.at("+", "-", "pm", "mp"):
            sign = self.take().text
            parts.append(_signed(sign, self.product()))
        self.depth -= 1
        found = parts[0] if len(parts) == 1 else total(*parts)
        if self.at("over", "choose"):
            by = self.take().text
            return quotient(found, self.expression()) if by == "over" else call("binomial", found, self.expression())
        return found

    def product(self) -> Term:
        """Products and quotients, with and without a sign; from left to right."""
        left = self.factor()
        while True:
            if self.at("*", "times", "cdot", "star") or self._is_times_x():
                self.take()
                left = product(left, self.factor())
            elif self.at("/", "div"):
                self.take()
                left = quotient(left, self.factor())
            elif self.at("bmod"):
                self.take()
                left = call("mod", left, self.factor())
            elif self.starts_factor():
                left = self._beside(left)
            else:
                return left

    def factor(self) -> Term:
        """A power with the signs in front of it."""
        if self.at("+", "-", "pm", "mp"):
            sign = self.take().text
            return _signed(sign, self.factor())
        return self.power()

    def power(self) -> Term:
        base = self.atom()
        while True:
            if self.at("!"):
                self.take()
                base = call("factorial", base)
            elif self.at("^") and not self._ends_here():
                base = self._raised(base)
            elif self.at("'") and base.head == "sym":
                self.take()
                base = symbol(base.name + "'")
            else:
                return base

    def starts_factor(self) -> bool:
        """Whether what comes next is multiplied without a sign."""
        token = self.next
        if token.kind in ("number", "symbol"):
            return True
        if token.kind == "open":
            return token.text != r"\{" and not (self.peek().kind == "word" and len(self.peek().text) > 1)  # (approximately) is no factor
        if token.kind == "word":
            return token.in_text and len(token.text) == 1 and not self.degrees_are_units
        if token.kind == "command":
            return token.text in FUNCTIONS or token.text in _NAMES or token.text in _ACCENTS or token.text in ("begin", "sqrt")
        return token.kind == "sign" and token.text == "|" and not self.bars

    def atom(self) -> Term:
        token = self.take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "symbol" or (token.kind == "word" and token.in_text and len(token.text) == 1):
            return self._symbol(token.text)
        if token.kind == "open":
            return self._bracket(token.text)
        if token.kind == "sign" and token.text == "|":
            return self._absolute()
        if token.kind == "command":
            return self._command(token.text)
        raise Unreadable(f"{token.text or 'the end'} where a value is wanted")

    def group(self) -> Term:
        """The argument of a command: a brace group or one sign; of a number its first digit."""
        if self.at("{"):
            self.take()
            return self._bracket("{")
        if self.next.kind == "number" and len(self.next.text) > 1 and self.next.text.isdigit():
            digits = self.next.text
            self.tokens = [
                *self.tokens[: self.place],
                Token(kind="number", text=digits[0]),
                Token(kind="number", text=digits[1:]),
                *self.tokens[self.place + 1 :],
            ]
        if self.at("-"):
            raise Unreadable("a sign for an argument")
        return self.atom()

    def _is_times_x(self) -> bool:
        """The x of `1.2 x 10^3`."""
        before, after = self.tokens[self.place - 1], self.peek()
        return self.next.text == "x" and self.next.spaced and before.kind == "number" and after.kind == "number" and after.spaced

    def _beside(self, left: Term) -> Term:
        """A factor without a sign between."""
        if self.next.kind == "number" and self.tokens[self.place - 1].kind in ("number", "symbol", "word"):
            raise Unreadable("two numbers side by side")
        return product(left, self.power())

    def _number(self, token: Token) -> Term:
        """A number; a whole one with a proper fraction behind it is a mixed number."""
        whole = read_number(token.text)
        fraction = self._slashed_fraction() or self._set_fraction() if token.text.isdigit() else None
        return total(whole, fraction) if fraction else whole

    def _slashed_fraction(self) -> Term | None:
        """`1/2` behind a whole number and a space."""
        above, slash, below = self.next, self.peek(), self.peek(2)
        if max(len(above.text), len(below.text)) > MAX_DIGITS or not (above.spaced and above.text.isdigit() and below.text.isdigit()):
            return None
        fraction = quotient(number(int(above.text)), number(int(below.text)))
        if slash.text != "/" or not _is_proper(fraction):
            return None
        self.place += 3
        return fraction

    def _set_fraction(self) -> Term | None:
        """`\\frac{1}{2}` behind a whole number."""
        start = self.place
        if not self.at("frac"):
            return None
        fraction = self.atom()
        if _is_proper(fraction):
            return fraction
        self.place = start
        return None

    def _symbol(self, name: str) -> Term:
        if name == "e" or (name == "i" and not self.at("_")):
            return symbol(name)
        while self.at("_"):
            self.take()
            name += "_" + self._raw_group()
        if name in _FUNCTION_LETTERS or self._is_applied(name):
            applied = self._application(name)
            if applied:
                return applied
        return symbol(name)

    def _is_applied(self, name: str) -> bool:
        """Whether `p(x)` follows: one letter on one other, in brackets, is a function; `x(x-1)` is a product."""
        return self.at("(") and self.peek().kind == "symbol" and self.peek(2).text == ")" and name not in "xyz" and name != self.peek().text

    def _application(self, name: str) -> Term | None:
        """`f(x)`, `f'(x)`, `f^{-1}(x)`: an unknown function of its arguments."""
        start = self.place
        while self.at("'"):
            name += self.take().text
        if self.at("^") and self.peek().text == "{" and self.peek(2).text == "-":
            self.take()
            name += "^" + self._raw_group()
        if not self.at("("):
            self.place = start
            return None
        self.take()
        return call(name, *self._arguments())

    def _arguments(self) -> list[Term]:
        """What stands between round brackets, the closing one with it."""
        found = [self._inner()]
        while self.next.kind == "separator" and self.next.text in (",", ";"):
            self.take()
            found.append(self._inner())
        if self.take().text != ")":
            raise Unreadable("an argument list left open")
        return found

    def _inner(self) -> Term:
        """An expression in which degrees are numbers and a bar opens anew."""
        outer = (self.degrees_are_units, self.bars)
        self.degrees_are_units, self.bars = False, 0
        found = self.expression()
        self.degrees_are_units, self.bars = outer
        return found

    def _bracket(self, opened: str) -> Term:
        inner = self._inner()
        closing = OPENING[opened]
        if self.next.kind == "end" and opened in ("{", "(", "["):
            return inner  # one left open at the end is read as if it were closed
        if self.next.kind != "close" or self.next.text != closing:
            raise Unreadable(f"{opened} without {closing}")
        self.take()
        if opened == r"\{":
            raise Unreadable("a set inside an expression")
        return {"lfloor": call("floor", inner), "lceil": call("ceil", inner)}.get(opened, inner)

    def _absolute(self) -> Term:
        self.bars += 1
        outer, self.degrees_are_units = self.degrees_are_units, False
        inner = self.expression()
        self.degrees_are_units = outer
        self.bars -= 1
        if not self.at("|"):
            raise Unreadable("| left open")
        self.take()
        return call("abs", inner)

    def _command(self, name: str) -> Term:
        if name == "frac":
            return quotient(self.group(), self.group())
        if name == "sqrt":
            return self._root()
        if name == "cbrt":
            return call("root", self._plain_argument(), number(3))
        if name == "binom":
            return call("binomial", self.group(), self.group())
        if name == "begin":
            return self._matrix()
        if name in _ACCENTS:
            return symbol(f"{name} {self._raw_group()}")
        if name in FUNCTIONS and name != "operatorname":
            return self._function(name)
        if name in _NAMES:
            return self._symbol(name)
        raise Unreadable(f"\\{name} is not known")

    def _root(self) -> Term:
        degree = None
        if self.at("["):
            self.take()
            degree = self._bracket("[")
        inner = self._plain_argument()
        return call("root", inner, degree) if degree else call("sqrt", inner)

    def _plain_argument(self) -> Term:
        """Of a root: a group, a bracket, or one number or symbol."""
        if self.at("{"):
            return self.group()
        if self.next.kind in ("number", "symbol", "open", "command"):
            return self.atom()
        raise Unreadable("a root of nothing")

    def _function(self, name: str) -> Term:
        exponent = None
        if name == "log" and self.at("_"):
            self.take()
            base = self.group() if self.at("{") else self.atom()
            return call("log", self._argument(), base)
        if self.at("^"):
            self.take()
            exponent = self.group() if self.at("{") else self.factor() if self.at("-") else self.atom()
        if exponent is not None and exponent in (number(-1), negative(number(1))) and name in _INVERSES:
            return call(_INVERSES[name], self._argument())
        if name in ("gcd", "lcm", "max", "min") and self.at("("):
            self.take()
            return call(name, *self._arguments())
        applied = call(name, self._argument())
        return raised(applied, exponent) if exponent is not None else applied

    def _argument(self) -> Term:
        """Of a named function: what is in brackets, else all that is multiplied behind it, up to the next function."""
        if self.at("("):
            self.take()
            return self._bracket("(")
        if self.at("{"):
            return self.group()
        if self.at("+", "-"):
            return self.factor()
        found = self._inner_power()
        while self.starts_factor() and not (self.next.kind == "command" and self.next.text in _GREEDY) and not self.at("(", "|"):
            before = self.tokens[self.place - 1]
            if self.next.kind == "number" and before.kind in ("number", "symbol"):
                break
            found = product(found, self._inner_power())
        return found

    def _inner_power(self) -> Term:
        outer, self.degrees_are_units = self.degrees_are_units, False
        found = self.power()
        self.degrees_are_units = outer
        return found

    def _raised(self, base: Term) -> Term:
        self.take()
        if self._takes_circle():
            return call("degree", base)
        if self.at("{") and self.peek().kind == "word" and self.peek(2).text == "}" and self.peek().text in ("st", "nd", "rd", "th"):
            self.place += 3
            return base
        if self.next.kind == "word" and self.next.text in ("st", "nd", "rd", "th"):
            self.take()
            return base
        if self.at("-", "+"):
            exponent = _signed(self.take().text, self.power())
        elif self.at("{"):
            exponent = self.group()
        else:
            exponent = self.atom()
            if self.at("^"):
                exponent = self._raised(exponent)  # towers bind to the right
            elif self.at("!"):
                self.take()
                exponent = call("factorial", exponent)
        return raised(base, exponent)

    def _takes_circle(self) -> bool:
        start = self.place
        braced = self.at("{")
        self.place += braced
        if self.next.text != "circ":
            self.place = start
            return False
        self.place += 1
        if braced:
            if not self.at("}"):
                raise Unreadable("a degree sign in an exponent")
            self.place += 1
        return True

    def _ends_here(self) -> bool:
        """Whether this `^` is a degree sign that is left for the unit."""
        after = self.peek(2) if self.peek().text == "{" else self.peek()
        return self.degrees_are_units and after.text == "circ"

    def _raw_group(self) -> str:
        """The signs of a group, as a name."""
        if not self.at("{"):
            return self.take().text
        depth, texts = 0, []
        while True:
            token = self.take()
            if token.kind == "end":
                raise Unreadable("a group left open")
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return "".join(texts)
            if token.text not in "{}":
                texts.append(token.text)

    def _matrix(self) -> Term:
        name = self._raw_group()
        if name not in _MATRICES:
            raise Unreadable(f"environment {name} is not known")
        if name == "array" and self.at("{"):
            self._raw_group()
        rows, row = list[Term](), list[Term]()
        while True:
            if not self.at("&", r"\\", "end"):
                row.append(self._inner())
            token = self.take()
            if token.text == "&":
                continue
            if row:
                rows.append(Term(head="row", args=tuple(row)))
            row = []
            if token.text == "end":
                if self._raw_group() != name:
                    raise Unreadable("environments that cross")
                break
            if token.text != r"\\":
                raise Unreadable(f"{token.text or 'the end'} inside a matrix")
        if not rows or len({len(found.args) for found in rows}) != 1:
            raise Unreadable("a ragged matrix")
        matrix = Term(head="matrix", args=tuple(rows))
        return call("det", matrix) if name == "vmatrix" else matrix


def _signed(sign: str, term: Term) -> Term:
    if sign in ("pm", "mp"):
        return Term(head=sign, args=(term,))
    return negative(term) if sign == "-" else term


def _is_proper(term: Term) -> bool:
    """Whether it is a fraction of whole numbers below 1."""
    if term.head != "div" or any(arg.head != "num" or arg.value.denominator != 1 for arg in term.args):
        return False
    above, below = (arg.value for arg in term.args)
    return 0 < above < below
