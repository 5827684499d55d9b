"""The final number is found and compared exactly, however it is written; form is judged apart; no text takes long."""

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import OutcomeKind
from slipstream.envs.graders import final_number, grade_exact, grade_final_number, has_asked_form


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 72", 72),
        ("so 48+24 = 72.\n#### 72", 72),
        ("#### 1,234.00", 1234),
        ("#### $1,234.", 1234),
        ("#### -$5.50", Fraction(-11, 2)),
        ("#### $-5", -5),
        ("#### \u22125", -5),
        ("#### 5 apples out of 9", 5),
        ("####\n7", 7),
        ("#### 1\n#### 2", 2),
        ("I get 12, then 30.", 30),
        ("The total is $1,234,567.89.", Fraction(123456789, 100)),
        ("10-3", 3),
        ("x = -3", -3),
        ("it is .5", Fraction(1, 2)),
        ("#### 3/4", Fraction(3, 4)),
        ("1,2,3", 3),
        ("\\boxed{1{,}000}", 1000),
        ("the answer is \\$15", 15),
        ("12 then ####", 12),
        ("#### none of the 4 here, so", 4),
        ("007", 7),
        ("72%", 72),
        ("1e3 was 1000", 1000),
    ],
)
def test_the_final_number_is_read(text: str, number: Fraction) -> None:
    assert final_number(text) == number


@pytest.mark.parametrize("text", ["", "####", "no number", "#### ٣", "#### 1/0", "#### " + "9" * 500])
def test_what_holds_no_number_is_none_and_unparseable(text: str) -> None:
    assert final_number(text) is None
    outcome = grade_final_number(Fraction(3), text, format_weight=0.5)
    assert (outcome.kind, outcome.reward, outcome.format_ok) == (OutcomeKind.UNPARSEABLE, 0.0, False)


DECIMALS = st.decimals(min_value=-(10**12), max_value=10**12, places=3)


@given(DECIMALS, st.sampled_from(["{}", "{:,}"]), st.sampled_from(["", ".", " euros", "0"]))
def test_every_way_to_write_a_decimal_gives_its_exact_value(value: Decimal, form: str, behind: str) -> None:
    assert final_number(f"First 17, then\n#### {form.format(value)}{behind}") == Fraction(value)


@given(st.text())
def test_any_text_gets_a_verdict(text: str) -> None:
    outcome = grade_final_number(Fraction(1), text)
    assert outcome.reward in (0.0, 1.0)
    assert (outcome.kind is OutcomeKind.VALUE) == (outcome.reward == 1.0)


def test_numbers_that_floats_confuse_are_told_apart() -> None:
    gold = final_number("0.1000000000000000000000000000000001")
    assert gold is not None
    assert grade_final_number(gold, "#### 0.1").reward == 0.0
    assert grade_final_number(gold, "#### 0.10000000000000000000000000000000010").reward == 1.0


@pytest.mark.parametrize(
    ("text", "form"),
    [("a\n#### 7", True), ("#### $1,000.", True), ("#### 7\n\n", True), ("7", False), ("#### 7 or 8", False), ("#### 7\nas asked", False)],
)
def test_form_is_judged_apart_from_the_number(text: str, form: bool) -> None:
    assert has_asked_form(text) is form
    outcome = grade_final_number(Fraction(-1), text, format_weight=0.25)
    assert (outcome.kind, outcome.reward, outcome.format_ok) == (OutcomeKind.WRONG, 0.25 * form, form)


def test_right_and_in_form_adds_up() -> None:
    assert grade_final_number(Fraction(7), "#### 7", format_weight=0.25).reward == 1.25
    assert grade_final_number(Fraction(7), "it is 7", format_weight=0.25).reward == 1.0


@pytest.mark.parametrize("unit", ["9", "1,", "-", "1/", "1.1", "####", ",111", "$-"])
def test_hostile_texts_take_no_more_than_linear_time(unit: str) -> None:
    start = time.perf_counter()
    grade_final_number(Fraction(3), unit * 100_000)
    assert time.perf_counter() - start < 5.0


@pytest.mark.parametrize(
    ("reply", "kind", "reward"),
    [(" yes\n", OutcomeKind.VALUE, 1.0), ("yes.", OutcomeKind.WRONG, 0.0), ("  ", OutcomeKind.UNPARSEABLE, 0.0)],
)
def test_exact_compares_the_whole_reply(reply: str, kind: OutcomeKind, reward: float) -> None:
    outcome = grade_exact("yes", reply)
    assert (outcome.kind, outcome.reward, outcome.format_ok) == (kind, reward, None)
