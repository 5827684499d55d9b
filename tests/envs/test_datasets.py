"""Good lines become rows, bad ones are skipped with number and reason, hopeless files are refused by name."""

import gzip
import json
import os
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.datasets import Dataset, read_dataset
from slipstream.envs.graders import final_number
from tests.envs.small_chat import write_lines

DATA = Path(os.environ.get("SLIPSTREAM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def read(path: Path) -> Dataset:
    return read_dataset(path, question_field="question", answer_field="answer", id_field="id")


def row(**fields: object) -> str:
    return json.dumps({"id": "a", "question": "1+1?", "answer": "2"} | fields)


def test_bad_lines_are_skipped_with_number_and_reason(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rows.jsonl",
        row(),
        '{"id": "b", "question": ',
        "",
        "[1]",
        '{"id": "c", "answer": "2"}',
        row(id="d", answer="  "),
        row(id="e", answer=None),
        '{"id": "f", "question": "q", "answer": NaN}',
        "[" * 100_000,
        row(id="g"),
    )
    data = read(path)
    assert [(found.id, found.line) for found in data.rows] == [("a", 1), ("g", 10)]
    assert [(skip.line, skip.reason) for skip in data.skipped[:-1]] == [
        (2, "not JSON: Expecting value at column 24"),
        (4, "not an object"),
        (5, "no field 'question'"),
        (6, "empty answer"),
        (7, "field 'answer' is not text or a number"),
        (8, "not JSON: NaN is not JSON"),
    ]
    assert data.skipped[-1].line == 9
    assert data.notes()[1] == "rows.jsonl line 4: not an object; skipped"
    assert data.notes(limit=2)[2:] == ("rows.jsonl: 5 more lines skipped",)


def test_numbers_keep_their_digits_and_ids_stay_unique(tmp_path: Path) -> None:
    lines = ('{"id": 7, "question": "q", "answer": 0.10}', '{"id": 7, "question": "q", "answer": -12}', '{"question": "q", "answer": 1}')
    data = read(write_lines(tmp_path / "rows.jsonl", *lines))
    assert [(found.id, found.answer) for found in data.rows] == [("7", "0.10"), ("7:2", "-12"), ("rows.jsonl:3", "1")]
    assert not data.skipped


def test_packed_marked_and_foreign_bytes(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + row(question="é").encode() + b"\r\n" + b'{"id": "\xff"}\n'
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    data = read(path)
    assert [found.question for found in data.rows] == ["é"]
    assert data.skipped[0].reason == "not UTF-8: invalid start byte at byte 9"


def test_hopeless_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.jsonl does not exist"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"rows\.jsonl has no usable row: 2 lines, all broken; the first: line 1: not JSON"):
        read(write_lines(tmp_path / "rows.jsonl", "x", "y"))
    with pytest.raises(UsageError, match="is empty"):
        read(write_lines(tmp_path / "rows.jsonl"))
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(row().encode() * 100)[:-20])
    with pytest.raises(UsageError, match=r"torn\.jsonl\.gz cannot be read"):
        read(torn)
    (tmp_path / "plain.jsonl.gz").write_text(row())
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "plain.jsonl.gz")


@pytest.mark.skipif(not (DATA / "gsm8k").is_dir(), reason=f"no GSM8K rows in {DATA}; set SLIPSTREAM_DATA")
def test_gsm8k_solutions_and_answers_agree() -> None:
    """The number after #### in each solution is the row's answer: reader and grader on real rows."""
    for name, count in (("train.jsonl.gz", 7473), ("test_public.jsonl", 791)):
        path = DATA / "gsm8k" / name
        solutions = read_dataset(path, question_field="question", answer_field="solution", id_field="id")
        assert len(solutions.rows) == count
        assert not solutions.skipped
        for solved, answered in zip(solutions.rows, read(path).rows, strict=True):
            assert final_number(solved.answer) == final_number(answered.answer) is not None
