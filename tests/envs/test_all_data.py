"""Every file of real rows loads by its task's name, with each row kept or dropped for a reason, and gold answers are right."""

import os
from pathlib import Path

import pytest

from slipstream.envs.catalog.entry import Item
from slipstream.envs.catalog.registry import find_entry
from slipstream.envs.curation.inspection import guess_entry, read_as
from slipstream.envs.datasets import Dataset, read_dataset
from slipstream.envs.graders import final_number
from slipstream.envs.grading import row_grader
from slipstream.envs.verifiers.code_case import case_problem

DATA = Path(os.environ.get("SLIPSTREAM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILES = {  # file: task, rows, ids of rows that cannot be used
    "gsm8k/train.jsonl.gz": ("gsm8k", 7473, ()),
    "gsm8k/test_public.jsonl": ("gsm8k", 791, ()),
    "math/math500_public.jsonl": ("math500", 299, ()),
    "math/train_sample.jsonl": ("math", 1983, ("math-train-879", "math-train-1571")),  # without an answer
    "math/worked_sample.jsonl": ("math", 999, ()),
    "aime/aime_1983_2023.jsonl": ("aime", 729, ()),
    "aime/aime_2024.jsonl": ("aime", 30, ()),
    "aime/aime_2025_I.jsonl": ("aime", 15, ()),
    "amc/amc12_public.jsonl": ("amc", 50, ()),
    "humaneval/humaneval_public.jsonl": ("humaneval", 98, ()),
    "humaneval/humanevalplus_public.jsonl.gz": ("humanevalplus", 97, ()),
    "mbpp/mbpp_train.jsonl": ("mbpp", 470, ()),
    "mbpp/mbpp_test_public.jsonl": ("mbpp", 300, ()),
    "mbpp/mbppplus_public.jsonl.gz": ("mbppplus", 288, ()),
    "leetcode/leetcode_test_public.jsonl.gz": ("leetcode", 137, ()),
    "leetcode/leetcode_train_sample.jsonl.gz": ("leetcode", 700, ()),
    "stdin_programs/code_contests_public.jsonl": ("code_contests", 94, ()),
    "countdown/train.jsonl": ("countdown", 2400, ()),
    "countdown/test_public.jsonl": ("countdown", 300, ()),
}
pytestmark = pytest.mark.skipif(not (DATA / "gsm8k").is_dir(), reason=f"no real rows in {DATA}; set SLIPSTREAM_DATA")


@pytest.mark.parametrize(("file", "task", "rows", "unusable"), [(file, *told) for file, told in FILES.items()], ids=list(FILES))
def test_every_row_is_kept_or_dropped_with_a_reason(file: str, task: str, rows: int, unusable: tuple[str, ...]) -> None:
    data = read_dataset(DATA / file)
    items, skipped = read_as(find_entry(task), data)
    assert len(items) + len(skipped) == rows
    assert tuple(skip.id for skip in skipped) == unusable
    for item in items:
        assert item.meaning.question in find_entry(task).form.user_turn(item.meaning) or task == "countdown"
    _gold_is_right(task, items)
    few = Dataset(name=data.name, rows=data.rows[:50], skipped=())
    assert len(read_as(guess_entry(few), few)[0]) == len(few.rows)


def _gold_is_right(task: str, items: list[Item]) -> None:
    """By our own graders; answers that other verifiers judge are at least whole."""
    grader = find_entry(task).grader
    for item in items:
        if task == "gsm8k":
            assert final_number(item.meaning.answer) == final_number(item.meaning.worked) is not None, item.id
        elif grader == "countdown":
            assert row_grader("countdown").grade(item, item.meaning.worked).reward == 1.0, item.id
        elif grader == "code":
            assert case_problem({**item.meaning.judged, "response": item.meaning.worked}) is None, item.id


def test_gold_programs_and_answers_pass_their_verifiers() -> None:
    """The first of each set, through the processes that judge in a run."""
    graders = {name: row_grader(name) for name in ("math", "code")}
    for file, (task, _, _) in FILES.items():
        entry = find_entry(task)
        if entry.grader not in graders or task == "code_contests":  # which has no reference programs
            continue
        data = read_dataset(DATA / file)
        item = read_as(entry, Dataset(name=data.name, rows=data.rows[:1], skipped=()))[0][0]
        outcome = graders[entry.grader].grade(item, item.meaning.worked or f"So it is \\boxed{{{item.meaning.answer}}}.")
        assert outcome.reward == 1.0, (item.id, outcome)
