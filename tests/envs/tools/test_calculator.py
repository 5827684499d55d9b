"""The calculator is exact, knows the ranks of signs, and refuses in words what it cannot read or would not finish."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.envs.tools.calculator import Calculator, calculate, shown
from slipstream.envs.tools.tool import ToolError


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*34", "408"),
        ("1 + 2 * 3 - 4 / 8", "6.5"),
        ("(1 + 2) * -(3 - 5)", "6"),
        ("2^3^2", "512"),
        ("-2^2", "-4"),
        ("2^-1", "0.5"),
        ("2 ** 10 // 3 % 7", "5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("0.1 + 0.2", "0.3"),
        (".5 * 4.", "2"),
        ("1/3", "1/3 = 0.333333333333"),
        ("-2/7", "-2/7 = -0.285714285714"),
        ("1,234 \u00d7 2 \u00f7 4 \u2212 1", "616"),
        ("[2+3]*4", "20"),
        ("1/1024", "0.0009765625"),
        ("10^40 / 3", f"{10**40}/3"),
        ("99999999999 * 99999999999", "9999999999800000000001"),
        ("(-1)^1000001", "-1"),
        ("0^0", "1"),
        ("0^7 + 1^-9", "1"),
    ],
)
def test_results(expression: str, result: str) -> None:
    assert Calculator().call({"expression": expression}) == result


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 +", "ends too early"),
        ("(1 + 2", "a bracket is not closed"),
        ("1 2", "'2' is not expected"),
        ("*3", "'\\*' is not expected"),
        ("__import__('os')", "__import__.* is no number"),
        ("1/0", "division by zero"),
        ("0^-1", "division by zero"),
        ("5 % (1-1)", "division by zero"),
        ("2^0.5", "only whole exponents"),
        ("9^9^9", "too large"),
        ("1.5^99999999999999999999", "too large"),
        ("2^4000 * 2^4000", "too large"),
        ("(" * 60 + "1", "within each other"),
        ("-" * 60 + "1", "within each other"),
        ("1+" * 400, "longer than 500"),
        ("", "has to be a text"),
        ("1e5", "'e5' is no number"),
    ],
)
def test_what_cannot_be_computed_is_said_in_words(expression: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        Calculator().call({"expression": expression})


@pytest.mark.parametrize("arguments", [{}, {"expression": True}, {"expression": ["1"]}, {"expression": "1", "more": "2"}, {"formula": "1"}])
def test_arguments_are_checked(arguments: dict) -> None:
    with pytest.raises(ToolError, match="argument"):
        Calculator().call(arguments)
    assert Calculator().call({"expression": 5}) == "5"


def expressions() -> st.SearchStrategy[str]:
    number = st.integers(0, 999).map(str)
    return st.recursive(
        number, lambda part: st.tuples(part, st.sampled_from("+-*/"), part).map(lambda one: f"({one[0]}{one[1]}{one[2]})"), max_leaves=8
    )


@given(expressions())
def test_it_agrees_with_fractions(expression: str) -> None:
    """The oracle evaluates the same brackets with Python's own fractions."""
    try:
        wanted = eval(re.sub(r"\d+", lambda match: f"Fraction({match[0]})", expression), {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            calculate(expression)
        return
    assert calculate(expression) == wanted
    said = shown(wanted)
    assert Fraction(said.split(" = ")[0]) == wanted
