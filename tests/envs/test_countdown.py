"""Countdown: right expressions earn the reward, however written; everything else does not; nothing is run; problems can be solved."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config.schema import CountdownTask
from slipstream.core.errors import UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs.catalog.entry import RowProblem
from slipstream.envs.countdown import Unreadable, evaluate, generate, grade_countdown, read_numbers
from slipstream.envs.generated import countdown_plan
from slipstream.envs.tags import last_answer

NUMBERS, TARGET = (94, 78, 72, 1), 89
RIGHT = "(94 - 78) + (72 + 1)"


@pytest.mark.parametrize(
    "reply",
    [
        f"<answer>{RIGHT}</answer>",
        f"<think>78 first? <answer>no</answer></think> so <answer> {RIGHT} = 89 </answer>.",
        "<answer>1+72-78+94</answer>",
        "<answer>[94 \u2212 78] + 72\u00d71 + 1 - 1</answer>".replace(" + 1 - 1", "").replace("72\u00d71", "(72 + 1)"),
        "<answer>-(78 - 94) + 72 + 1</answer>",
        f"I think\n{RIGHT}",
    ],
)
def test_a_right_expression_is_rewarded(reply: str) -> None:
    outcome = grade_countdown(NUMBERS, TARGET, reply)
    assert (outcome.kind, outcome.reward) == (OutcomeKind.VALUE, 1.0), outcome.detail
    assert outcome.format_ok is ("<answer>" in reply)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("94 - 78 + 72", OutcomeKind.WRONG),  # a number left out
        ("94 - 78 + 72 + 1 + 1 - 1", OutcomeKind.WRONG),  # one used thrice
        ("94 - 78 + 71 + 2", OutcomeKind.WRONG),  # others
        ("89", OutcomeKind.WRONG),
        ("94 + 78 + 72 + 1", OutcomeKind.WRONG),
        ("94 / (78 - 78) + 72 + 1", OutcomeKind.WRONG),
        (f"{RIGHT} = 90", OutcomeKind.UNPARSEABLE),
        ("", OutcomeKind.UNPARSEABLE),
        ("94 - 78 + (72 + 1", OutcomeKind.UNPARSEABLE),
        ("94 78 + 72 1", OutcomeKind.UNPARSEABLE),
        ("9**9**9**9", OutcomeKind.UNPARSEABLE),
        ("__import__('os').abort()", OutcomeKind.UNPARSEABLE),
        ("94 - 78 + 72 + 1.0", OutcomeKind.UNPARSEABLE),
        ("(" * 5000 + "94" + ")" * 5000, OutcomeKind.UNPARSEABLE),
        ("-" * 900 + "94", OutcomeKind.UNPARSEABLE),
        ("+".join(["1"] * 200), OutcomeKind.UNPARSEABLE),
        ("9" * 100, OutcomeKind.UNPARSEABLE),
    ],
)
def test_anything_else_is_not(expression: str, kind: OutcomeKind) -> None:
    outcome = grade_countdown(NUMBERS, TARGET, f"<answer>{expression}</answer>")
    assert (outcome.kind, outcome.reward) == (kind, 0.0), outcome.detail


def test_the_last_answer_counts() -> None:
    assert last_answer("<answer>a</answer> <answer> b </answer> <answer>c") == "b"
    assert last_answer("<answer>draft <answer>b</answer>") == "b"
    assert last_answer("</answer><answer>") is None
    wrong_last = f"<answer>{RIGHT}</answer><answer>94</answer>"
    assert grade_countdown(NUMBERS, TARGET, wrong_last).kind is OutcomeKind.WRONG


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans()).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})" if parts[3] else f"{parts[0]}{parts[1]}{parts[2]}"
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_values_are_those_of_python(expression: str) -> None:
    """The oracle may evaluate: its expressions are made here."""
    exact = "".join(f"Fraction({part})" if part.isdigit() else part for part in _split(expression))
    try:
        wanted = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        wanted = None
    value, used = evaluate(expression)
    assert value == wanted
    assert used == [int(part) for part in _split(expression) if part.isdigit()]


@given(st.text(alphabet="0123456789+-*/() =<>answer.", max_size=60))
def test_any_text_gets_a_verdict(text: str) -> None:
    outcome = grade_countdown((1, 2), 3, text)
    assert outcome.reward in (0.0, 1.0)


def test_generated_problems_can_be_solved_and_repeat() -> None:
    for index in range(200):
        numbers, target, solution = generate(3, index, count=4, largest=99, largest_target=99)
        assert 1 <= target <= 99
        assert grade_countdown(numbers, target, f"<answer>{solution}</answer>").reward == 1.0
        assert generate(3, index, count=4, largest=99, largest_target=99) == (numbers, target, solution)
    assert generate(3, 0, count=2, largest=1, largest_target=1)[:2] == ((1, 1), 1)


def test_a_plan_holds_different_problems_split_by_hash() -> None:
    plan = countdown_plan(CountdownTask(size=300, held_out=0.2))
    questions = [item.meaning.question for item in (*plan.train, *plan.test)]
    assert len(set(questions)) == 300
    assert 30 < len(plan.test) < 90
    larger = countdown_plan(CountdownTask(size=400, held_out=0.2))
    assert {item.id for item in plan.test} <= {item.id for item in larger.test}
    item = plan.train[0]
    assert plan.grader.grade(item, f"<answer>{item.meaning.answer}</answer>").reward == 1.0
    with pytest.raises(UsageError, match=r"task\.size = 50: only [1-9] different problems were found; lower it"):
        countdown_plan(CountdownTask(numbers=2, largest=1, largest_target=2, size=50))


@pytest.mark.parametrize(
    ("numbers", "target"), [([1, "2"], 3), ([1, True], 3), ([], 3), ([1] * 13, 3), (None, 3), ([1, 2], 3.0), ([1, -2], 3)]
)
def test_rows_of_other_kinds_are_refused(numbers: object, target: object) -> None:
    with pytest.raises(RowProblem, match=r"^field '(numbers|target)'"):
        read_numbers(numbers, target)


def test_texts_that_are_no_expressions_say_why() -> None:
    for text, why in (("1 +", "ends too early"), ("1 2", "'2' is not expected"), ("(1", "not closed"), ("x", "no number, sign or bracket")):
        with pytest.raises(Unreadable, match=why):
            evaluate(text)


def _split(expression: str) -> list[str]:
    spaced = "".join(character if character.isdigit() else f" {character} " for character in expression)
    return spaced.split()
