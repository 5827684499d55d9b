"""The catalogue: rows are understood in each of their known spellings, bad ones are refused with a reason, forms are whole and named."""

import re
from typing import Any

import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.catalog.entry import Meaning, RowProblem
from slipstream.envs.catalog.maths import last_boxed
from slipstream.envs.catalog.registry import ENTRIES, find_entry
from slipstream.envs.datasets import WrittenNumber

ASSERTS = ["assert f(1) == 2"]
CHECK = "def check(candidate):\n    assert candidate(1) == 2"
PAIRS = [{"input": "1\n", "output": "2\n"}]


def meaning(name: str, fields: dict[str, Any]) -> Meaning:
    entry = find_entry(name)
    return entry.read(entry, fields)


@pytest.mark.parametrize(
    ("name", "fields", "question", "answer"),
    [
        ("custom", {"problem": " 1+1? ", "final_answer": 2}, "1+1?", "2"),
        ("gsm8k", {"question": "q", "answer": "1,234"}, "q", "1234"),
        ("gsm8k", {"question": "q", "answer": "so <<1+1=2>>2\n#### 1,234"}, "q", "1234"),
        ("math", {"problem": "p", "solution": r"thus $\boxed{\frac{1}{2}}$, or \boxed{x^{2}}."}, "p", "x^{2}"),
        ("math", {"problem": "p", "answer": r"\frac12", "solution": "words"}, "p", r"\frac12"),
        ("math500", {"problem": "p", "answer": "3"}, "p", "3"),
        ("aime", {"Question": "p", "Answer": 60}, "p", "60"),
        ("amc", {"problem": "p", "answer": "142"}, "p", "142"),
        ("deepmath", {"question": "q", "final_answer": "0", "answer": "no"}, "q", "0"),
        ("countdown", {"nums": [3, 1, 2], "target": 6}, "1 2 3 -> 6", ""),
        ("countdown", {"numbers": [3, 1, 2], "target": 6, "solution": "1 + 2 + 3"}, "1 2 3 -> 6", "1 + 2 + 3"),
        (
            "humaneval",
            {"prompt": "def f(x):", "entry_point": "f", "test": CHECK, "canonical_solution": "    return x + 1"},
            "def f(x):",
            "f",
        ),
        ("humanevalplus", {"prompt": "def f(x):", "entry_point": "f", "test": CHECK}, "def f(x):", "f"),
        ("mbpp", {"text": "add one", "test_list": ASSERTS, "test_setup_code": "", "code": "def f(x): return x + 1"}, "add one", ASSERTS[0]),
        (
            "mbppplus",
            {"prompt": "add one", "tests": ASSERTS, "test_imports": ["import math"], "plus_test": "assert 1"},
            "add one",
            ASSERTS[0],
        ),
        ("leetcode", {"problem_description": "p", "prompt": "import math", "entry_point": "S().f", "test": CHECK}, "p", "S().f"),
        ("code_contests", {"problem": "p", "tests": PAIRS}, "p", "1 tests"),
        ("code_contests", {"description": "p", "public_tests": {"input": ["1"], "output": ["2"]}, "private_tests": None}, "p", "1 tests"),
    ],
)
def test_rows_are_understood_in_their_spellings(name: str, fields: dict[str, Any], question: str, answer: str) -> None:
    found = meaning(name, fields)
    assert (found.question, found.answer) == (question, answer)
    slots = {"question", "instruction", *found.slots}
    assert set(re.findall(r"\{([a-z_]+)\}", find_entry(name).form.template)) <= slots
    asked = find_entry(name).form.user_turn(found)
    assert all(slot in asked for slot in found.slots.values())
    assert question in asked or name == "countdown"
    assert find_entry(name).form.instruction in asked


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("custom", {"question": "q"}, "no field 'answer' (or 'final_answer')"),
        ("custom", {"answer": "1"}, "no field 'question' (or 'problem', 'prompt')"),
        ("custom", {"question": "q", "answer": "  "}, "empty answer"),
        ("custom", {"question": "q", "answer": None}, "field 'answer' is not text or a number"),
        ("custom", {"question": "q", "answer": True}, "field 'answer' is not text or a number"),
        ("custom", {"question": "q", "answer": float("nan")}, "field 'answer' is not text or a number"),
        ("custom", {"question": ["q"], "answer": "1"}, "field 'question' is not text or a number"),
        ("custom", {"question": "\ud800", "answer": "1"}, "field 'question' holds half of a surrogate pair, which is no text"),
        ("gsm8k", {"question": "q", "answer": "so ####"}, "nothing after #### in field 'answer'"),
        ("math", {"problem": "p", "solution": "words"}, "no field 'answer', and no \\boxed{} in a solution"),
        ("math", {"problem": "p", "solution": 3}, "field 'solution' is not text"),
        ("countdown", {"target": 3}, "field 'numbers' (or 'nums') is not a list of 1 to 12 whole numbers"),
        ("mbpp", {"prompt": "p", "tests": []}, "field 'tests' is not a list of texts"),
        ("mbpp", {"prompt": "p", "tests": ASSERTS, "test_imports": "x"}, "field 'test_imports' is not a list of texts"),
        ("humaneval", {"prompt": "p", "entry_point": "f"}, "no field 'test'"),
        (
            "code_contests",
            {"problem": "p", "tests": []},
            "no tests: a list of input and output in 'tests', or public_tests and private_tests",
        ),
        ("code_contests", {"problem": "p", "tests": [*PAIRS, {"input": 1}]}, "test 2 is no pair of texts 'input' and 'output'"),
        (
            "code_contests",
            {"problem": "p", "public_tests": {"input": ["1"], "output": []}},
            "tests whose inputs and outputs are not two lists",
        ),
    ],
)
def test_bad_rows_say_why(name: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RowProblem) as refused:
        meaning(name, fields)
    assert str(refused.value).startswith(why)


def test_numbers_stand_as_they_were_written() -> None:
    number = WrittenNumber("0.10")
    number.text = "0.10"
    assert meaning("custom", {"question": "q", "answer": number}).answer == "0.10"


def test_what_the_code_verifier_is_told() -> None:
    plus = meaning("mbppplus", {"prompt": "p", "tests": ASSERTS, "test_imports": ["import math"], "plus_test": "assert f(3) == 4"})
    assert plus.judged["tests"] == [*ASSERTS, "assert f(3) == 4"]
    assert plus.judged["test_setup"] == "import math"
    assert plus.slots["tests"] == ASSERTS[0]
    whole = meaning(
        "humaneval", {"prompt": "def f(x):\n    '''Adds one.'''", "entry_point": "f", "test": CHECK, "solution": "    return x + 1"}
    )
    scope: dict[str, Any] = {}
    exec(f"{whole.judged['prelude']}\n{whole.judged['test']}", scope)
    assert scope[whole.judged["entry_point"]](1) is None  # a reply without the function must fail
    exec(whole.worked.removeprefix("```python\n").removesuffix("\n```"), scope)
    scope["check"](scope["f"])
    started = meaning(
        "leetcode", {"problem": "p", "starter_code": "class S:\n    ", "entry_point": "S().f", "test": CHECK, "prelude": "import re"}
    )
    assert (started.judged["prelude"], started.judged["entry_point"]) == ("import re", "S().f")
    assert find_entry("leetcode").form.user_turn(started).startswith("p\n\n```python\nclass S:\n```\n\nGive")


def test_every_entry_has_a_form_of_its_kind_and_a_name() -> None:
    assert {"gsm8k", "math", "math500", "aime", "amc", "deepmath", "mbpp", "mbppplus", "humaneval", "humanevalplus", "leetcode"} < set(
        ENTRIES
    )
    for entry in ENTRIES.values():
        assert all((entry.about, entry.source, entry.licence, entry.splits, entry.form.instruction))
        asked = {"math": "\\boxed{}", "final_number": "####", "countdown": "<answer>", "code": "```python"}[entry.grader]
        assert asked in entry.form.instruction
    with pytest.raises(UsageError, match=r"task\.name = 'humanevil': no such task in the catalogue; did you mean humaneval"):
        find_entry("humanevil")


@pytest.mark.parametrize(
    ("text", "inside"),
    [(r"\boxed{a}", "a"), (r"\boxed{a} \boxed{{b}}", "{b}"), (r"\boxed{", None), (r"\boxed{}", None), ("a", None), ("\\boxed{" * 9, None)],
)
def test_the_last_box_is_found(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside
