"""Where the answer stands: boxes, marks and statements, with thinking, hedges and noise around them; any text is read in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.envs.verifiers.math_extract import extract
from slipstream.envs.verifiers.math_grade import MAX_ANSWER, grade

FOUND = [
    # boxes
    (r"so $\boxed{3}$.", "3", "boxed"),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}", "boxed"),
    (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}", "boxed"),
    (r"\fbox{4} was a draft, the result is \boxed{5}", "5", "boxed"),
    (r"\boxed 6", "6", "boxed"),
    (r"\boxed{\boxed{7}}", "7", "boxed"),
    (r"\boxed{x=\fbox{8}}", "x=8", "boxed"),
    ("\\boxed\n{ 9 }", "9", "boxed"),
    (r"\boxed{10}} and one brace too many", "10", "boxed"),
    (r"$\boxed{\frac{1}{2}$ and one too few", r"\frac{1}{2", "boxed"),
    (r"$\boxed{1}$ and $\boxed{-2}$", "1, -2", "boxed"),
    (r"\boxed{1} or \boxed{2}", "1 or 2", "boxed"),
    (r"\boxed{0.5}, that is, $\boxed{\frac12}$", r"\frac12", "boxed"),
    (r"\boxed{\frac12} $\boxed{0.5}$", "0.5", "boxed"),
    (r"\boxed{4}\boxed{\phantom{5}}", "4", "boxed"),
    (r"<think>\boxed{1}</think>\boxed{2}", "2", "boxed"),
    (r"the prompt opened it \boxed{1}</think> now \boxed{2}", "2", "boxed"),
    (r"\boxed{3}<|im_end|>\n\boxed{4}", "3", "boxed"),
    (r"\boxed{3}<!-- \boxed{4} -->", "3", "boxed"),
    (r"<answer>\boxed{5}</answer> not \boxed{6}", "5", "boxed"),
    ("\x00\\boxed{5}\x00", "5", "boxed"),
    # marks
    ("#### 12", "12", "hash"),
    ("####12", "12", "hash"),
    ("####\n12", "12", "hash"),
    ("#### 1,234 dollars, as asked.", "1,234 dollars", "hash"),
    ("#### 1\n#### 2", "2", "hash"),
    ("#### $\\frac12$", "$\\frac12$", "hash"),
    ("#### **7**", "7", "hash"),
    (r"#### \boxed{12}", "12", "boxed"),
    (r"\boxed{11} was too low" + "\n#### 12", "12", "hash"),
    (r"\boxed{11}" + "\n#### Verification:\nall is well", "11", "boxed"),
    ("#### 1. Set up\nx is 2.\nThe answer is 3.", "3", "plain"),
    # statements
    ("The answer is 5.", "5", "plain"),
    ("The final answer is: $x=5$", "x=5", "plain"),
    ("Answer: **5**", "5", "plain"),
    ("**Final Answer**: 5 cm", "5 \\text{ cm}", "plain"),
    ("Final Answer: The smallest number is 5.", "5", "plain"),
    ("Thus the answer is \\[\n\\frac12\n\\]", "\\frac12", "plain"),
    ("The answers are $1$ and $2$, as claimed.", "1, 2", "plain"),
    ("Answer: 4\nAnswer: 5", "5", "plain"),
    ("The correct option is (B) because A fails.", "(B)", "plain"),
    ("The answer is 1.5.", "1.5", "plain"),
    ("<answer>5</answer>", "5", "plain"),
    ("<think>The answer is 4.</think>The answer is 5.", "5", "plain"),
    ("5", "5", "plain"),
    ("x = 5", "x = 5", "plain"),
    ("Adding up.\nSo the total is 12.", "12", "plain"),
    ("Therefore, $n = 12$.", "n = 12", "plain"),
    ("So the area is 3 m²", "3 \\text{ m}²", "plain"),
]  # fmt: skip

NOTHING = [
    "",
    "\n \n",
    r"\boxed{}",
    r"\boxed{\text{ }}",
    r"\boxed{\boxed{}}",
    r"\boxed{12",
    r"first \boxed{11}, then \boxed{12",
    r"<think>\boxed{12}</think>",
    r"<think>\boxed{12}",
    "I cannot tell.",
    "maybe 7?",
    "AZ7K",
    "...",
]

STATED = [
    ("42", "Thus, the total cost is $42.", True), ("1/4", r"Hence the probability equals \frac{1}{4}.", True),
    ("42", "ANSWER: 42", True), ("42", "Answer 42", True), ("42", "My final answer:\n\n42", True),
    ("B", "Final answer is **(B)**", True), ("42", "So, x = 42.", True), ("42", "Therefore, there are 42 ways.", True),
    ("7", "We conclude that n = 7", True), ("42", "The result is 42.", True), ("3/4", r"**Answer:** $\frac{3}{4}$", True),
    ("42", "The answer is therefore 42", True), ("5", "The answer is 5 apples, which makes sense.", True),
    ("5", "The answer is $5$, not $6$.", True), ("6", "The answer is not 5 but 6.", False),
    ("5", "The answer is between 4 and 6", False), ("3.14", "The answer is approximately 3.14", True),
    ("x=5,y=6", "The answer is x=5, y=6.", True), ("5", "The answer is 5, and 6.", False),
    ("2,3,5", "The answers are 2, 3, and 5.", True), ("C", "Choose option C", True), ("C", "I would pick C", False),
    ("10", "#### The answer is 10", True), ("10", "#### 10%", True), ("7", "#### 7.", True),
    ("12", r"[THINK]\boxed{11}[/THINK]The answer is 12", True), ("5", "The answer is five.", True),
    ("24", "The final answer is: 24 square meters.", True), ("-3", "The answer is \u22123.", True), ("1000", "answer: 1,000", True),
    ("0.5", "The answer is .5", True), ("Paris", "The answer is Paris.", True), ("no", "The answer is: No.", True),
    ("42", "42", True), ("42", "**42**", True), ("42", "$42$", True), ("42", "I think 42", False),
    ("8", "Step 1: 3+5=8\nAnswer = 8", True), ("8", "The answer should be 8", True), ("8", r"The answer is \(8\).", True),
    ("8", "Therefore the answer is:\n$$8$$", True), ("8", "The correct answer is B. 8", True),
    ("B", "The correct answer is B. 8", True), ("8", "#### Answer\n8", False), ("8", "#### Answer: 8", True),
    ("8", "Final Answer\n\n\\[ \\boxed{8} \\]", True), ("8", r"The answer is $\frac{16}{2} = 8$.", True),
    ("1.5", "The answer is 1.5.", True), ("1", "The answer is 1.5.", False), ("6", "so 2+4 is 6", True),
    ("3", r"\boxed{\text{Three}}", True), ("(2,3)", "The answer is (2, 3).", True),
    ("12", "\\boxed{12}\n\nWait, maybe it's 13.", True), ("13", "I first thought \\boxed{12} but it's \\boxed{13}.", True),
]  # fmt: skip


@pytest.mark.parametrize(("response", "answer", "form"), FOUND)
def test_the_answer_is_found_where_it_stands(response: str, answer: str, form: str) -> None:
    found = extract(response)
    assert found is not None
    assert (found.text.strip(), found.form) == (answer, form)


@pytest.mark.parametrize("response", NOTHING)
def test_where_no_answer_is_given_none_is_found(response: str) -> None:
    assert extract(response) is None
    assert not grade("12", response).found


@pytest.mark.parametrize(
    "unit", ["\\boxed", "\\boxed{", "\\boxed{1}", "{", "}", "$", "#### ", "The answer is ", "<think>", "<!--", "1 ", "**", "(", "\\"]
)
def test_hostile_repetitions_take_no_more_than_linear_time(unit: str) -> None:
    start = time.process_time()
    assert not grade("2", unit * (100_000 // len(unit))).right
    assert time.process_time() - start < 5.0  # quadratic steps take minutes


@given(st.text(), st.sampled_from(["\\boxed{%s}", "#### %s", "The answer is %s.", "%s"]))
def test_any_text_gets_a_verdict(text: str, frame: str) -> None:
    verdict = grade("3", frame.replace("%s", text))
    assert verdict.right <= verdict.found


def test_an_answer_too_long_to_read_is_compared_sign_by_sign() -> None:
    digits = "7" * (MAX_ANSWER + 1)
    assert grade(digits, f"\\boxed{{{digits}}}").right
    assert not grade(digits, f"\\boxed{{{digits[:-1]}8}}").right
    assert not grade("1", f"\\boxed{{{digits}}}").right


def test_statements_in_many_words_are_judged_by_what_they_state() -> None:
    assert [row for row in STATED if grade(row[0], row[1]).right is not row[2]] == []
