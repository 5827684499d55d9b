"""The shared cases of the code verifier, with the limits they state, and its canaries."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slipstream.envs.sandbox.records import Isolation
from slipstream.envs.verifiers.code import Reason, Verdict, grade_response
from slipstream.envs.verifiers.code_case import case_of, case_problem
from slipstream.envs.verifiers.code_verifier import CODE, open_code
from slipstream.envs.verifiers.verifier import failed_canaries
from tests.envs.sandbox.cells import machine, quiet
from tests.envs.verifiers.code_rows import gold_rows, read, sandbox

AT_ONCE = 4
SETS = (
    "mbpp/mbpp_train",
    "mbpp/mbpp_test_public",
    "mbpp/mbppplus_public",
    "humaneval/humaneval_public",
    "humaneval/humanevalplus_public",
    "leetcode/leetcode_test_public",
    "leetcode/leetcode_train_sample",
)
NO_ASSERTION = {"mbpp-737+", "mbpp-787+", "mbpp-794+"}  # their extra tests compare and assert nothing
TOO_LARGE = {"mbpp-255+"}  # returns values of a gigabyte


def graded(rows: list[dict[str, Any]]) -> list[Verdict]:
    """Verdicts on rows, several at once; afterwards nothing of them is left."""
    assert [row["id"] for row in rows if case_problem(row)] == []
    before = machine()
    with sandbox(AT_ONCE) as box, ThreadPoolExecutor(AT_ONCE) as threads:
        verdicts = list(threads.map(lambda row: grade_response(row["response"], case_of(row), box.run), rows))
        assert quiet(box)
    assert machine() == before
    return verdicts


def agree(rows: list[dict[str, Any]]) -> None:
    """Contested cases too where root isolates: an ordinary user's programs cannot be caught killing their parent, which survives."""
    with sandbox(1) as box:
        strict = box.confinement.isolation is Isolation.ROOT
    differing = [
        (row["id"], row["reason"], verdict.reason, verdict.detail)
        for row, verdict in zip(rows, graded(rows), strict=True)
        if (verdict.passed, verdict.reason) != (row["expected"] == "pass", row["reason"]) and (strict or not row["contested"])
    ]
    assert differing == []


def test_every_shared_case_has_its_verdict_and_reason() -> None:
    """All cases but those that wait for a deadline, contested ones too."""
    agree([row for row in read("code_conformance/cases") if row["reason"] != "timeout"])


@pytest.mark.slow
def test_every_case_that_runs_out_of_time_is_told_so() -> None:
    agree([row for row in read("code_conformance/cases") if row["reason"] == "timeout"])


def test_canaries_of_the_code_verifier() -> None:
    """All get their verdict; a verifier whose answers are mixed up does not pass them."""
    sandbox(1).close()
    with open_code(AT_ONCE) as judge:
        assert failed_canaries(CODE, judge) == []
    assert {canary.right for canary in CODE.canaries()} == {True, False}
    json.dumps([canary.row for canary in CODE.canaries()])


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_gold_solutions_pass(name: str) -> None:
    """Within 4 minutes and 4 GB each; a few extra tests take tens of seconds."""
    rows = [row | {"limits": {"seconds": 240, "memory_mb": 4096}} for row in gold_rows(name)]
    failed = {row["id"]: (v.reason, v.detail) for row, v in zip(rows, graded(rows), strict=True) if not v.passed}
    known = dict.fromkeys(NO_ASSERTION, Reason.NO_CHECK) | dict.fromkeys(TOO_LARGE, Reason.MEMORY)
    ids = {row["id"] for row in rows}
    assert {id: reason for id, (reason, _) in failed.items()} == {id: known[id] for id in known if id in ids}, failed


def test_the_same_answer_gets_the_same_verdict() -> None:
    """The order of sets does not depend on the process."""
    row = {"response": "```python\ndef f(xs): return list(set(xs))\n```", "entry_point": "f", "tests": ["assert f('hello world') == []"]}
    details = {verdict.reason for verdict in graded([row | {"id": n} for n in range(3)])}
    assert len(details) == 1
    shown = {"response": "```python\nprint(list(set('hello world')))\n```", "io": [{"input": "", "output": ""}]}
    assert len({verdict.detail for verdict in graded([shown | {"id": n} for n in range(3)])}) == 1
