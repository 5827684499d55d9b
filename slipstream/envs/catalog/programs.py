"""Entries of sets that ask for a Python program. `judged` is the code verifier's row: a style and what it runs; see docs/data.md.

A reply that leaves the function out finds the prompt's own empty one (HumanEval) and fails its tests.
"""

from typing import Any

from slipstream.envs.catalog.entry import Entry, Meaning, PromptForm, RowProblem, optional_text, text_of, texts_of
from slipstream.envs.datasets import Fields

LIMITS = {"seconds": 10, "memory_mb": 1024}
LONG_LIMITS = {"seconds": 30, "memory_mb": 1024}  # reference solutions of LeetCode take up to 10 to 30 seconds on a slow machine
SLOW_LIMITS = {"seconds": 60, "memory_mb": 2048}  # a few tests of EvalPlus take 5 to 40 seconds
_CODE = "Give the whole program in one ```python block."
FUNCTION = PromptForm(
    template="Complete this Python function.\n\n```python\n{question}\n```\n\n{instruction}",
    instruction="Give the whole function, with its imports, in one ```python block.",
)
TESTED = PromptForm(template="{question}\n\nYour code should pass these tests:\n\n{tests}\n\n{instruction}", instruction=_CODE)
STARTED = PromptForm(template="{question}{starter}\n\n{instruction}", instruction=_CODE)
PROGRAM = PromptForm(
    template="{question}\n\n{instruction}",
    instruction="Write a Python program that reads standard input and writes the answer to standard output. " + _CODE,
)


def read_function(entry: Entry, fields: Fields) -> Meaning:
    """A function's head with its description; `test` defines check(candidate)."""
    prompt, solution = text_of(fields, entry.question), optional_text(fields, ("solution", "canonical_solution"))
    name = text_of(fields, ("entry_point",))
    limits = SLOW_LIMITS if entry.name.endswith("plus") else LIMITS
    judged = {"style": "check", "prelude": f"{prompt}\n", "entry_point": name, "test": text_of(fields, ("test",)), "limits": limits}
    return Meaning(question=prompt, answer=name, judged=judged, worked=_fenced(f"{prompt}\n{solution.lstrip(chr(10))}") if solution else "")


def read_tested(entry: Entry, fields: Fields) -> Meaning:
    """A description and lines of asserts."""
    tests = texts_of(fields, ("tests", "test_list"))
    return _tested(entry, fields, tests, tests, LIMITS)


def read_tested_more(entry: Entry, fields: Fields) -> Meaning:
    """As `read_tested`, with a long test of EvalPlus; only the short ones are shown."""
    tests = texts_of(fields, ("tests", "test_list"))
    return _tested(entry, fields, tests, [*tests, text_of(fields, ("plus_test", "test"))], SLOW_LIMITS)


def read_started(entry: Entry, fields: Fields) -> Meaning:
    """A problem, perhaps with a class to fill in, and check(candidate) for an entry point such as Solution().twoSum."""
    starter, solution = optional_text(fields, ("starter_code",)).rstrip(), optional_text(fields, ("solution", "completion"))
    name = text_of(fields, ("entry_point",))
    return Meaning(
        question=text_of(fields, entry.question),
        answer=name,
        slots={"starter": f"\n\n```python\n{starter}\n```" if starter else ""},
        judged={
            "style": "check",
            "prelude": optional_text(fields, ("prelude", "prompt")),
            "entry_point": name,
            "test": text_of(fields, ("test",)),
            "limits": LONG_LIMITS,
        },
        worked=_fenced(solution) if solution else "",
    )


def read_program(entry: Entry, fields: Fields) -> Meaning:
    """A problem, and pairs of standard input and output: a list, or columns of public, private and generated ones."""
    if "tests" in fields:
        pairs = fields["tests"]
    else:
        kinds = [fields[name] for name in ("public_tests", "private_tests", "generated_tests") if isinstance(fields.get(name), dict)]
        pairs = [pair for kind in kinds for pair in _columns(kind)]
    if not isinstance(pairs, list) or not pairs:
        raise RowProblem("no tests: a list of input and output in 'tests', or public_tests and private_tests")
    for number, pair in enumerate(pairs, start=1):
        if not isinstance(pair, dict) or not isinstance(pair.get("input"), str) or not isinstance(pair.get("output"), str):
            raise RowProblem(f"test {number} is no pair of texts 'input' and 'output'")
    io = [{"input": pair["input"], "output": pair["output"]} for pair in pairs]
    judged = {"style": "stdin", "io": io, "limits": LIMITS}
    return Meaning(question=text_of(fields, entry.question), answer=f"{len(io)} tests", judged=judged)


def _tested(entry: Entry, fields: Fields, shown: list[str], run: list[str], limits: dict[str, int]) -> Meaning:
    solution = optional_text(fields, ("solution", "code"))
    setup = "\n".join((*_lines(fields.get("test_imports")), optional_text(fields, ("test_setup", "test_setup_code"))))
    return Meaning(
        question=text_of(fields, entry.question),
        answer=shown[0],
        slots={"tests": "\n".join(shown)},
        judged={
            "style": "assert",
            "tests": run,
            "test_setup": setup.strip(),
            "entry_point": optional_text(fields, ("entry_point",)),
            "limits": limits,
        },
        worked=_fenced(solution) if solution else "",
    )


def _columns(kind: dict[str, Any]) -> list[Any]:
    inputs, outputs = kind.get("input"), kind.get("output")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise RowProblem("tests whose inputs and outputs are not two lists of one length")
    return [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise RowProblem("field 'test_imports' is not a list of texts")
    return value


def _fenced(code: str) -> str:
    return f"```python\n{code.strip(chr(10))}\n```"


PROGRAMS = (
    Entry(
        name="humaneval",
        about="164 functions to complete from their description",
        source="openai/human-eval; hub:openai/openai_humaneval:test",
        licence="MIT",
        splits="test only",
        question=("prompt",),
        read=read_function,
        form=FUNCTION,
        grader="code",
    ),
    Entry(
        name="humanevalplus",
        about="HumanEval with many more tests",
        source="evalplus/humanevalplus_release; hub:evalplus/humanevalplus:test",
        licence="Apache-2.0",
        splits="test only",
        question=("prompt",),
        read=read_function,
        form=FUNCTION,
        grader="code",
    ),
    Entry(
        name="mbpp",
        about="short Python functions, three asserts each",
        source="google-research/mbpp; hub:google-research-datasets/mbpp:full:train",
        licence="CC BY 4.0",
        splits="train on tasks 601-974 (and 511-600), test on 11-510; mbppplus shares tasks with both",
        question=("prompt", "text"),
        read=read_tested,
        form=TESTED,
        grader="code",
    ),
    Entry(
        name="mbppplus",
        about="MBPP with many more tests",
        source="evalplus/mbppplus_release; hub:evalplus/mbppplus:test",
        licence="Apache-2.0",
        splits="test only",
        question=("prompt",),
        read=read_tested_more,
        form=TESTED,
        grader="code",
    ),
    Entry(
        name="leetcode",
        about="LeetCode problems with a class to fill in",
        source="hub:newfacade/LeetCodeDataset:train",
        licence="collection MIT; problem texts are LeetCode's",
        splits="train before, test after July 2024",
        question=("problem", "problem_description", "query"),
        read=read_started,
        form=STARTED,
        grader="code",
    ),
    Entry(
        name="code_contests",
        about="contest problems solved by programs from standard input to standard output",
        source="deepmind/code_contests; hub:deepmind/code_contests:train",
        licence="CC BY 4.0",
        splits="train, valid and test of the source",
        question=("problem", "description", "question"),
        read=read_program,
        form=PROGRAM,
        grader="code",
    ),
)
