"""`slipstream grade`: verdicts in the order of the rows, a summary, and wrong files refused as a whole."""

import gzip
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slipstream.cli.grade import grade_command
from slipstream.core.errors import UsageError
from tests.envs.small_chat import write_lines

ROWS = [
    {"id": "right", "gold": "1/2", "response": r"\boxed{0.5}", "expected": True},
    {"id": 7, "gold": "1/2", "response": r"\boxed{0.6}", "expected": True},
    {"id": "none", "gold": "1/2", "response": "no idea", "expected": False},
    {"id": "right", "gold": "3", "answer": "3.0"},
]


def grade(source: Path, out: Path, *options: str, task: str = "math"):
    app = typer.Typer()
    app.command()(grade_command)
    return CliRunner().invoke(app, ["--task", task, "--in", str(source), "--out", str(out), *options])


def test_each_row_gets_its_verdict_in_order(tmp_path: Path) -> None:
    source, out = tmp_path / "cases.jsonl.gz", tmp_path / "verdicts.jsonl"
    source.write_bytes(gzip.compress("\n\n".join(json.dumps(row) for row in ROWS).encode()))
    done = grade(source, out, "--json", "--workers", "1")
    assert done.exit_code == 0, done.exception
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["outcome"], row["reward"]) for row in verdicts] == [
        ("right", "value", 1.0),
        (7, "wrong", 0.0),
        ("none", "unparseable", 0.0),
        ("right", "value", 1.0),
    ]
    assert verdicts[1]["detail"] == "read '0.6', want '1/2'"
    summary = json.loads(done.stdout)
    assert (summary["rows"], summary["outcomes"]) == (4, {"value": 2, "wrong": 1, "unparseable": 1})
    assert summary["expected"] == {"agree": 2, "rows": 3, "differing": [7]}
    assert summary["rows_per_second"] > 0


def test_wrong_calls_are_told_before_anything_is_judged(tmp_path: Path) -> None:
    source, out = tmp_path / "cases.jsonl", tmp_path / "verdicts.jsonl"
    write_lines(source, '{"id": 1, "gold": "3"}', '{"gold": "3", "response": "3"}', "nonsense", '{"id": 2, "gold": "3", "response": "3"}')
    error = grade(source, out).exception
    assert isinstance(error, UsageError)
    assert [line.split(":")[0].strip() for line in str(error).splitlines()[1:]] == ["line 1", "line 2", "line 3"]
    assert '"response" is missing' in str(error)
    for wrong, told in ((grade(source, out, task="mth"), "did you mean math"), (grade(source, tmp_path), "is a directory")):
        assert isinstance(wrong.exception, UsageError)
        assert told in str(wrong.exception)
    assert not out.exists()


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no rows"):
        raise grade(write_lines(tmp_path / "empty.jsonl"), tmp_path / "out.jsonl").exception or AssertionError
