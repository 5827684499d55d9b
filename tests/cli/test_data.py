"""`slipstream data`: what is told of a file, what is dropped and why, and wrong calls."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from slipstream.cli.main import app
from slipstream.core.errors import UsageError
from tests.envs.small_chat import byte_tokenizer, write_lines

LONG = "A farmer has twelve hens and each of them lays two eggs a day so how many eggs does he sell in a week of seven days"
ROWS = [
    {"id": "kept", "question": "How many legs has a spider?", "answer": "8"},
    {"id": "same", "question": "how many legs has a SPIDER", "answer": "8"},
    {"id": "first", "question": f"{LONG} in May?", "answer": 168},
    {"id": "near", "question": f"{LONG} in June?", "answer": 168.5},
    {"id": "seen", "question": "How many arms has an octopus?", "answer": "1/2"},
    {"id": "hard", "question": "Is P equal to NP, yes 1 or no 0?", "answer": "0"},
    {"id": "easy", "question": "What is 1 + 1?", "answer": "2"},
    {"id": "unmeasured", "question": "What is 1 - 1?", "answer": "0"},
    {"id": "none", "question": "What is left?"},
    {"id": "short", "question": "2?", "answer": "2"},
    {"id": "long", "question": "How many? " * 40, "answer": "2"},
]
RATES = {"kept": 0.5, "first": 0.25, "hard": 0.0, "easy": 1.0}


def call(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_lines(tmp_path / "train.jsonl", *(json.dumps(row) for row in ROWS), "torn")
    write_lines(tmp_path / "test.jsonl", json.dumps({"id": "t-1", "question": "How many arms has an octopus", "answer": "8"}))
    write_lines(tmp_path / "rates.jsonl", *(json.dumps({"id": id, "pass_rate": rate, "n": 8}) for id, rate in RATES.items()))
    return tmp_path


def test_inspect_tells_what_is_there(files: Path) -> None:
    found = call("inspect", files / "train.jsonl", "--json", "--samples", 1)
    assert (found["task"], found["rows"], found["usable"], found["unusable"]) == ("custom", 12, 10, 2)
    assert found["reasons"] == {"no field 'answer' (or 'final_answer')": 1, "not JSON: Expecting value at column 1": 1}
    assert found["fields"] == {"id": {"text": 11}, "question": {"text": 11}, "answer": {"text": 8, "number": 2}}
    assert found["answers"] == {"integer": 8, "decimal": 1, "fraction": 1}
    assert (found["duplicates"], found["near_duplicates"]) == (1, 1)
    assert found["lengths"]["characters"]["min"] == 2
    assert found["lengths"]["characters"]["max"] == 399
    assert found["samples"] == [{"id": "kept", "question": "How many legs has a spider?", "answer": "8"}]
    told = call("inspect", files / "train.jsonl")
    assert "line 9 (none): no field 'answer'" in told
    assert "question      text 11" in told
    byte_tokenizer().save(files)
    tokens = call("inspect", files / "test.jsonl", "--json", "--model", files)["lengths"]["tokens"]
    assert tokens["max"] == len("How many arms has an octopus")


def test_inspect_knows_the_catalogue_and_guesses_by_it(files: Path) -> None:
    assert call("inspect", "gsm8k", "--json")["licence"] == "MIT"
    write_lines(files / "sums.jsonl", json.dumps({"nums": [1, 2], "target": 3}))
    found = call("inspect", files / "sums.jsonl", "--json")
    assert (found["task"], found["answers"]) == ("countdown", {"expression": 1})
    assert call("inspect", files / "sums.jsonl", "--json", "--task", "gsm8k")["usable"] == 0
    with pytest.raises(UsageError, match="NAME = 'gsm9k': no such task in the catalogue; did you mean gsm8k"):
        call("inspect", "gsm9k")
    with pytest.raises(UsageError, match="--task = 'gsm9k': no such task in the catalogue; did you mean gsm8k"):
        call("inspect", files / "sums.jsonl", "--task", "gsm9k")


def test_curate_drops_each_row_for_its_first_reason(files: Path) -> None:
    arguments = ("--against", files / "test.jsonl", "--pass-rates", files / "rates.jsonl", "--min-chars", 3, "--max-chars", 300)
    found = call("curate", files / "train.jsonl", "--out", files / "better.jsonl", "--json", *arguments)
    dropped = [json.loads(line) for line in (files / "better.dropped.jsonl").read_text().splitlines()]
    assert [(row["id"], row["line"], row["reason"]) for row in dropped] == [
        ("same", 2, "duplicate"),
        ("near", 4, "near_duplicate"),
        ("seen", 5, "leak"),
        ("hard", 6, "too_hard"),
        ("easy", 7, "too_easy"),
        ("unmeasured", 8, "unmeasured"),
        ("none", 9, "unusable"),
        ("short", 10, "too_short"),
        ("long", 11, "too_long"),
        ("", 12, "unusable"),
    ]
    assert dropped[2]["detail"] == "test.jsonl t-1: the same text"
    assert dropped[3]["detail"] == "0 of 8"
    assert [json.loads(line) for line in (files / "better.jsonl").read_text().splitlines()] == [ROWS[0], ROWS[2]]
    assert (found["rows"], found["kept"]) == (12, 2)
    assert found["dropped"]["unusable"] == 2
    assert sum(found["dropped"].values()) == 10


def test_curate_writes_what_the_name_says_and_keeps_ids(files: Path) -> None:
    write_lines(files / "bare.jsonl", '{"question": "a?", "answer": 1}', '{"question": "b?", "answer": 2}')
    told = call("curate", files / "bare.jsonl", "--out", files / "out.jsonl.gz")
    assert "2 of 2 rows kept, read as custom" in told
    rows = [json.loads(line) for line in gzip.decompress((files / "out.jsonl.gz").read_bytes()).splitlines()]
    assert rows[0] == {"id": "bare.jsonl:1", "question": "a?", "answer": 1}
    call("curate", files / "bare.jsonl", "--out", files / "out.parquet")
    assert pq.read_table(files / "out.parquet").to_pylist() == rows
    again = (files / "out.jsonl.gz").read_bytes()
    call("curate", files / "bare.jsonl", "--out", files / "out.jsonl.gz")
    assert (files / "out.jsonl.gz").read_bytes() == again


def test_rates_and_tokens_have_bounds_of_their_own(files: Path) -> None:
    byte_tokenizer().save(files)
    arguments = ("--pass-rates", files / "rates.jsonl", "--min-pass", 0.3, "--max-pass", 1, "--model", files, "--max-tokens", 27)
    call("curate", files / "train.jsonl", "--out", files / "better.jsonl", *arguments)
    assert [json.loads(line)["id"] for line in (files / "better.jsonl").read_text().splitlines()] == ["kept", "easy"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--out", "{dir}/out.csv"], r"--out .*out\.csv: the name must end in \.jsonl, \.jsonl\.gz, \.parquet"),
        (["--out", "{dir}/none/out.jsonl"], "there is no directory"),
        (["--out", "{dir}/train.jsonl"], "is a file that is read; write to another one"),
        (["--out", "{dir}/out.jsonl", "--max-tokens", "5"], "--max-tokens needs --model DIR"),
        (["--out", "{dir}/out.jsonl", "--min-pass", "0.5"], "need --pass-rates FILE"),
        (["--out", "{dir}/out.jsonl", "--min-chars", "9000"], r"no row of .* is left: 2 unusable, 10 too_short"),
        (
            ["--out", "{dir}/out.jsonl", "--against", "{dir}/rates.jsonl"],
            r"--against: 4 rows have no question that can be compared:\n  line 1",
        ),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_written(files: Path, arguments: list[str], why: str) -> None:
    before = sorted(path.name for path in files.iterdir())
    with pytest.raises(UsageError, match=why):
        call("curate", files / "train.jsonl", *(argument.format(dir=files) for argument in arguments))
    assert sorted(path.name for path in files.iterdir()) == before
