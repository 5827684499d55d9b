"""The maths verifier as registered: outcomes of rows, canaries, the whole conformance set, and the answers of real data sets."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.verifiers import math_verifier
from slipstream.envs.verifiers.math_verifier import MATH, MathJudge
from slipstream.envs.verifiers.pool import Pool
from slipstream.envs.verifiers.registry import find_verifier
from slipstream.envs.verifiers.verifier import Judge, failed_canaries

DATA = Path(os.environ.get("SLIPSTREAM_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
CASES = DATA / "math_conformance" / "cases.jsonl.gz"
GOLDS = {
    "gsm8k/train.jsonl.gz": 7473,
    "gsm8k/test_public.jsonl": 791,
    "math/math500_public.jsonl": 299,
    "math/train_sample.jsonl": 1983,
    "math/worked_sample.jsonl": 999,
    "aime/aime_1983_2023.jsonl": 729,
    "aime/aime_2024.jsonl": 30,
    "aime/aime_2025_I.jsonl": 15,
    "amc/amc12_public.jsonl": 50,
}
NO_ANSWER = {"math-train-879", "math-train-1571"}  # their answers are null and empty
HALF_A_GOLD = {"math-worked-279", "math-worked-778"}  # the solution ends in two boxed answers, of which the gold has the last alone


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with MATH.open(2) as opened:
        yield opened


def read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [json.loads(line) for line in file]


def judge_all(judge: Judge, rows: list[dict[str, Any]]) -> list[Outcome]:
    futures = [judge.submit(row) for row in rows]
    return [future.result() for future in futures]


def test_outcomes_tell_right_wrong_and_no_answer_and_form_apart(judge: Judge) -> None:
    rows = [
        {"gold": "0.5", "response": r"\boxed{1/2}", "format": "boxed"},
        {"gold": "0.5", "response": "#### 1/3", "format": "boxed"},
        {"gold": "0.5", "response": "no idea", "format": "hash"},
        {"gold": "0.5", "response": "The answer is 1/2.", "format": "plain"},
        {"gold": "0.5", "answer": r"\frac12"},
    ]
    found = [(outcome.kind, outcome.reward, outcome.format_ok) for outcome in judge_all(judge, rows)]
    assert found == [
        (OutcomeKind.VALUE, 1.0, True),
        (OutcomeKind.WRONG, 0.0, False),
        (OutcomeKind.UNPARSEABLE, 0.0, False),
        (OutcomeKind.VALUE, 1.0, None),
        (OutcomeKind.VALUE, 1.0, True),
    ]


def test_what_is_not_judged_in_time_or_dies_has_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_verifier, "DEADLINE_S", 0.05)
    for function, kind in (("time:sleep", OutcomeKind.INFRASTRUCTURE), ("tests.envs.verifiers.jobs:stall", OutcomeKind.TIMEOUT)):
        with Pool(function, workers=1) as pool:
            outcome = MathJudge(pool).submit({"gold": "1", "response": "1"}).result()
        assert (outcome.kind, outcome.reward) == (kind, None)


def test_the_canaries_are_judged_as_they_must_be_and_one_turned_round_is_told(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed_canaries(MATH, judge) == []
    monkeypatch.setattr(math_verifier, "_response", lambda row: r"\boxed{\frac12}")
    told = failed_canaries(MATH, judge)
    assert "math verifier: canary 'empty' must be wrong, got value (read '\\\\frac12', want '1/2')" in told


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"response": "1"}, '"gold" is missing'),
        ({"gold": " ", "response": "1"}, "\"gold\" is ' '"),
        ({"gold": 3, "response": "1"}, '"gold" is 3'),
        ({"gold": "3"}, '"response" is missing'),
        ({"gold": "3", "answer": 3}, '"answer" is 3'),
        ({"gold": "3", "response": "1", "format": "box"}, "\"format\" is 'box'"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_field(row: dict[str, Any], told: str) -> None:
    assert (MATH.problem(row) or "").startswith(told)


def test_verifiers_are_found_by_name() -> None:
    assert find_verifier("math") is MATH
    with pytest.raises(UsageError, match="no such verifier; did you mean math"):
        find_verifier("maths")


def test_every_uncontested_case_of_the_conformance_set_is_right(judge: Judge) -> None:
    rows = read(CASES)
    assert len(rows) == 715
    differing = [
        (row["id"], outcome.kind, outcome.detail)
        for row, outcome in zip(rows, judge_all(judge, rows), strict=True)
        if outcome.reward is None or (outcome.reward == 1.0) != row["expected"]
    ]
    assert differing == []


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(GOLDS))
def test_gold_answers_and_worked_solutions_of_real_sets_are_right(judge: Judge, file: str) -> None:
    rows = read(DATA / file)
    assert len(rows) == GOLDS[file]
    usable = [row for row in rows if row["id"] not in NO_ANSWER]
    golds = judge_all(judge, [{"gold": row["answer"], "answer": row["answer"]} for row in usable])
    worked = [row for row in usable if "solution" in row and row["id"] not in HALF_A_GOLD]
    solved = judge_all(judge, [{"gold": row["answer"], "response": row["solution"]} for row in worked])
    wrong = [row["id"] for row, outcome in zip(usable + worked, golds + solved, strict=True) if outcome.reward != 1.0]
    assert wrong == []
    assert Counter(outcome.style for outcome in solved).keys() <= {"boxed", "hash"}
