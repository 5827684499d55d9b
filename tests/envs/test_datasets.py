"""Lines and tables become rows, bad lines are skipped with number and reason, hopeless files are refused by name."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.datasets import SkippedLine, read_dataset, refusal
from tests.envs.small_chat import write_lines


def row(**fields: object) -> str:
    return json.dumps({"id": "a", "question": "1+1?", "answer": "2"} | fields)


def test_bad_lines_are_skipped_with_number_and_reason(tmp_path: Path) -> None:
    lines = (row(), '{"id": "b", "question": ', "", "[1]", '{"id": "f", "question": "q", "answer": NaN}', "[" * 100_000, row(id="g"))
    data = read_dataset(write_lines(tmp_path / "rows.jsonl", *lines))
    assert [(found.id, found.line) for found in data.rows] == [("a", 1), ("g", 7)]
    assert [(skip.line, skip.reason) for skip in data.skipped[:-1]] == [
        (2, "not JSON: Expecting value at column 24"),
        (4, "not an object"),
        (5, "not JSON: NaN is not JSON"),
    ]
    assert data.skipped[-1].line == 6


def test_numbers_keep_their_digits_and_ids_stay_unique(tmp_path: Path) -> None:
    lines = ('{"id": 7, "answer": 0.10}', '{"id": 7, "answer": -12}', '{"answer": 1}', '{"task_id": "a@3"}', '{"id": true}', '{"key": "k"}')
    path = write_lines(tmp_path / "rows.jsonl", *lines)
    data = read_dataset(path)
    # A run adds @index to a row's id, so an id that ends so would be taken for another row.
    assert [found.id for found in data.rows] == ["7", "7:2", "rows.jsonl:3", "a@3:4", "rows.jsonl:5", "rows.jsonl:6"]
    assert data.rows[0].fields["answer"] == 0.1
    assert data.rows[0].fields["answer"].text == "0.10"
    assert read_dataset(path, id_fields=("key",)).rows[5].id == "k"


def test_packed_marked_and_foreign_bytes(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + row(question="é").encode() + b"\r\n" + b'{"id": "\xff"}\n'
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    data = read_dataset(path)
    assert [found.fields["question"] for found in data.rows] == ["é"]
    assert data.skipped[0].reason == "not UTF-8: invalid start byte at byte 9"


def test_hopeless_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.jsonl does not exist"):
        read_dataset(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"none\.parquet does not exist"):
        read_dataset(tmp_path / "none.parquet")
    with pytest.raises(UsageError, match="is empty"):
        read_dataset(write_lines(tmp_path / "rows.jsonl"))
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(row().encode() * 100)[:-20])
    with pytest.raises(UsageError, match=r"torn\.jsonl\.gz cannot be read"):
        read_dataset(torn)
    (tmp_path / "plain.jsonl.gz").write_text(row())
    with pytest.raises(UsageError, match="cannot be read"):
        read_dataset(tmp_path / "plain.jsonl.gz")
    (tmp_path / "plain.parquet").write_text(row())
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        read_dataset(tmp_path / "plain.parquet")


def test_all_bad_rows_are_listed_in_one_error() -> None:
    skipped = [SkippedLine(line=line, id=f"r{line}", reason="empty answer") for line in range(1, 13)]
    told = str(refusal("rows.jsonl", skipped, "12 bad rows")).splitlines()
    assert told[:2] == ["rows.jsonl: 12 bad rows:", "  line 1 (r1): empty answer"]
    assert told[-2:] == ["  line 10 (r10): empty answer", "  and 2 more"]


def test_a_table_gives_the_rows_of_the_same_lines(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "question": "q", "answer": n, "tests": [{"input": "1", "output": "2"}]} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    data = read_dataset(tmp_path / "rows.parquet")
    assert [(found.id, dict(found.fields), found.line) for found in data.rows] == [(f"r{n}", rows[n], n + 1) for n in range(3)]


def test_a_set_of_the_hub_is_asked_for_by_name_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        if name == "owner/none":
            raise FileNotFoundError("no such set")
        return [{"question": "q", "answer": "1"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert read_dataset("hub:openai/gsm8k:main:test").rows[0].id == "hub:openai/gsm8k:main:test:1"
    read_dataset("hub:zwhe99/DeepMath-103K:train")
    assert asked == [("openai/gsm8k", "main", "test"), ("zwhe99/DeepMath-103K", None, "train")]
    with pytest.raises(UsageError, match="hub:owner/none:train cannot be had: no such set"):
        read_dataset("hub:owner/none:train")
    with pytest.raises(UsageError, match="is written hub:OWNER/NAME:SPLIT"):
        read_dataset("hub:openai/gsm8k")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"need the extra 'hub' \(pip install 'slipstream\[hub\]'\)"):
        read_dataset("hub:openai/gsm8k:main:test")
