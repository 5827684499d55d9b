"""Expressions made to cost or to deceive: towers, factorials, depth, open brackets. A verdict in no time, without an exception."""

import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.envs.verifiers.math_compare import same_text
from slipstream.envs.verifiers.pool_worker import RECURSION

LONG = "+".join(f"x_{{{n}}}" for n in range(900))
CASES = [
    ("1", "7^{7^{7^{7}}}", False),
    ("7^{7^{7}}", "7^{7^{7}}", True),
    ("7^{7^{7}}", "7^{7^{6}}", False),
    ("7^{7^{7}}+1", "1+7^{7^{7}}", True),
    ("10^{10^{12}}", "10^{1000000000000}", True),
    ("1", "(10^9)!", False),
    ("(10^9)!", "(10^9)!", True),
    ("2", r"\binom{10^9}{5\cdot 10^8}", False),
    ("1", r"\sin(10^{10^{10}})", False),
    ("0", r"e^{-10^{10}}", False),
    ("1", "10^{-4000}", False),
    ("3e9999999999", "3e9999999999", True),
    ("1", "3e9999999999", False),
    ("(x+y+z)^{99}", "(z+y+x)^{99}", True),
    ("(x+y+z)^{99}", "(z+y-x)^{99}", False),
    ("1", "(" * 3000 + "1" + ")" * 3000, True),
    ("1", "-" * 2000 + "1", True),
    ("1", r"\frac{1}{" * 500 + "1" + "}" * 500, True),
    ("1", r"\sqrt{" * 300 + "1" + "}" * 300, True),
    ("2", "x^" * 300 + "x", False),
    ("1", ",".join("1" * 4000), False),
    ("1", "9" * 5000, False),
    ("9" * 5000, "9" * 5000, True),
    ("9" * 5000, "9" * 4999 + "8", False),
    (LONG, LONG + "+0", True),
    ("1", r"\begin{pmatrix}" + r"\\".join(["1&" * 49 + "1"] * 50) + r"\end{pmatrix}", False),
    ("1", r"\int_0^\infty \frac{\sin x^x}{x}dx", False),
    ("2", r"\frac{2}{1-1}", False),
    ("0", r"\infty-\infty", False),
    ("0", r"\log 0", False),
    ("0", r"0^{-1}", False),
    ("1", "|" * 500, False),
    ("1", "[" * 5000, False),
    ("1", r"\pm" * 40 + "1", False),
    ("1", "x|y" * 200, False),
    ("1", "½" * 100, False),
    ("1", "i!", False),
    ("1", r"\binom{i}{2}", False),
]  # fmt: skip
PIECES = (
    r"\frac|\sqrt|{|}|(|)|[|]|\{|\}|^|_|,|;|:|=|<|>|\le|\ne|\in|\cup|\setminus|\pm|\mp|+|-|*|/|!|'|%|$|0|1|12|3.5|1e400|1,000|x|n|e|i|\pi"
    r"|\infty|\sin|\log|\text{or}|\text{cm}|^\circ|\begin{pmatrix}|\end{pmatrix}|&|\\|\binom|\lfloor|\mathbb{R}|\sum|\overline{3}|3:30|f(x)"
)
GOLDS = ["1", r"\frac{x}{2}", "(1,2)", r"[0,\infty)", "x=1,y=2", "7:32"]


@pytest.fixture(autouse=True)
def deep_recursion():
    """As in the workers, where answers are judged."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("place", range(len(CASES)))
def test_hostile_answers_are_judged_in_no_time(place: int) -> None:
    gold, answer, same = CASES[place]
    start = time.process_time()
    assert same_text(gold, answer) is same
    assert time.process_time() - start < 5.0  # what is computed instead of compared takes for ever


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join),
    st.sampled_from(["1", r"\frac{x}{2}", "(1,2)", r"[0,\infty)", "x=1,y=2", "7:32"]),
)
def test_no_text_raises_and_verdicts_repeat(answer: str, gold: str) -> None:
    assert same_text(gold, answer) == same_text(gold, answer)
    assert not same_text("17", answer) or not same_text("19", answer)
