"""Which text of a response is run, and what is wrong with a row. Pure."""

import pytest

from slipstream.envs.sandbox.records import Limits
from slipstream.envs.verifiers.code import same_output
from slipstream.envs.verifiers.code_case import CodeCase, Style, called_names, case_of, case_problem
from slipstream.envs.verifiers.code_extract import extract_code

ADD = "def add(a, b):\n    return a + b"
OTHER = "def other():\n    return 1"
CASE = CodeCase(style=Style.ASSERT, entry_point="add", limits=Limits())


@pytest.mark.parametrize(
    "response",
    [
        f"Here:\n```python\n{ADD}\n```\nDone.",
        f"```\n{ADD}\n```",
        f"```Python3\n{ADD}\n```",
        f"```python title=add.py\n{ADD}\n```",
        f"~~~py\n{ADD}\n~~~",
        f"````python\n{ADD}\n````",
        "- so:\n\n  ```python\n  def add(a, b):\n      return a + b\n  ```",
        f"```python\n{ADD}",
        f"```python\n{ADD}```",
        f"```python\n{ADD}\n```\nOutput:\n```text\n5\n```",
        f"```python\n{ADD}\n```\nUse:\n```python\nprint(add(1, 2))\n```",
        f"```python\n{OTHER}\n```\n```python\n{ADD}\n```\n```python\n{OTHER}\n```",
        f"```python\ndef add(a, b): return 0\n```\nBetter:\n```python\n{ADD}\n```",
        f"```python\n{ADD}\n```\n```\n5\n```",
        f"```bash\npip install x\n```\n```python\n{ADD}\n```",
        f"<think>\n```python\ndef add(a, b): return 0\n```\n</think>\n```python\n{ADD}\n```",
        f"draft\n```python\ndef add(a, b): return 0\n```\n</think>\n```python\n{ADD}\n```",
        ADD,
        f"The function:\n\n{ADD}\n\nIt adds.",
        f"\ufeff{ADD}",
        f"```python\r\n{ADD}\r\n```\r\n".replace("\n    ", "\r\n    "),
    ],
)
def test_the_answer_is_found(response: str) -> None:
    code = extract_code(response, CASE)
    assert code is not None
    assert code.replace("\r", "").strip() == ADD


@pytest.mark.parametrize(
    "response",
    [
        "",
        "Add the two.",
        "yes",
        "```python\n```",
        "```python\n# todo\n```",
        f"<think>\n```python\n{ADD}\n```",
        f"<think>{ADD}</think> plus",
        "```json\n{}\n```",
        "x = 1",
    ],
)
def test_no_code_is_no_code(response: str) -> None:
    assert extract_code(response, CASE) is None


def test_a_continuation_is_put_behind_its_prompt() -> None:
    prompt = 'from typing import List\n\ndef add(a, b):\n    """Add."""\n'
    case = CodeCase(style=Style.COMPLETE, entry_point="add", prompt=prompt, limits=Limits())
    assert extract_code("    return a + b\n", case) == prompt + "    return a + b\n"
    assert extract_code("```python\n    return a + b\n```", case) == prompt + "    return a + b"
    assert extract_code(f"```python\n{ADD}\n```", case) == f"from typing import List\n{ADD}"
    assert extract_code(" \n", case) is None


def test_names_that_an_answer_must_define() -> None:
    assert called_names("assert set(f(1)) == set((1,))") == ("f",)
    assert called_names("assert sum(1, 2) == 3") == ("sum",)
    assert called_names("root = Node(1)\nassert depth(root) == 1") == ("Node", "depth")
    assert called_names("def check(c): pass\ncheck(g)") == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"response": 1}, "response"),
        ({"style": "guess"}, "'guess'"),
        ({"style": "check", "test": "x"}, "'entry_point'"),
        ({"tests": "assert f()"}, "tests"),
        ({"style": "stdin", "io": [{"input": "1"}]}, "io"),
        ({"limits": {"seconds": 0}}, "limits.seconds"),
        ({"limits": {"memory_mb": "much"}}, "limits.memory_mb"),
        ({"prelude": 3}, "prelude"),
    ],
)
def test_a_row_that_cannot_be_judged_is_named(fields: dict[str, object], told: str) -> None:
    row = {"response": "x", "tests": ["assert f()"]} | fields
    assert told in (case_problem(row) or "")


def test_rows_of_the_data_sets_become_cases() -> None:
    mbpp = case_of({"response": "", "tests": ["assert f(1)"], "test_setup": "x = 1", "test_imports": ["import math"]})
    assert (mbpp.style, mbpp.setup, mbpp.names) == (Style.ASSERT, "import math\nx = 1", ("f",))
    assert case_of({"response": "", "tests": [{"input": "1", "output": "2"}]}).io == (("1", "2"),)
    leetcode = case_of({"response": "", "test": "def check(c): ...", "entry_point": "Solution().f", "prelude": "import math"})
    assert (leetcode.style, leetcode.names, leetcode.prelude) == (Style.CHECK, ("Solution",), "import math")


def test_output_is_compared_line_by_line() -> None:
    assert same_output("1 2 \n3\r\n", "1 2\n3")
    assert same_output("\n3\n\n", "3\n")
    for printed, wanted in (("1 2 3", "1 2\n3"), ("yes", "YES"), (" 3", "3"), ("1\n\n2", "1\n2"), ("", "0")):
        assert not same_output(printed, wanted)
