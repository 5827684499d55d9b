"""Pass rates are read from what evaluations and runs write, counted as evaluations count, and refused where a row says nothing."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.curation.pass_rates import PassRate, read_pass_rates
from slipstream.telemetry.rollouts import rollout_schema
from tests.envs.small_chat import write_lines


def lines(path: Path, *rows: dict[str, object]) -> Path:
    return write_lines(path, *(json.dumps(row) for row in rows))


def test_rates_counts_and_samples_of_one_row_add_up(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "rates.jsonl",
        {"id": "a", "pass_rate": 0.25, "n": 8},
        {"id": "a", "correct": 3, "n": 4},
        {"prompt_id": "b@17", "outcome": "value", "reward": 1.1},
        {"prompt_id": "b@18", "outcome": "value", "reward": 0.5},
        {"id": "b", "outcome": "wrong", "reward": 0.0},
        {"id": "b", "outcome": "infrastructure", "reward": None},
        {"id": "failed", "outcome": "timeout", "reward": None},
        {"id": 7, "pass_rate": 1},
    )
    assert read_pass_rates(path) == {
        "a": PassRate(right=5.0, samples=12),
        "b": PassRate(right=1.0, samples=3),
        "7": PassRate(right=1.0, samples=1),
    }
    assert read_pass_rates(path)["b"].rate == pytest.approx(1 / 3)


def test_rollouts_of_a_run_are_rates(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    told = [("a@0", "value", 1.0), ("a@5", "wrong", 0.0), ("b@1", "unparseable", 0.0), ("b@1", "timeout", None)]
    schema = pa.schema([rollout_schema().field(name) for name in ("prompt_id", "outcome", "reward")])
    for step, half in enumerate((told[:2], told[2:])):
        rows = [dict(zip(schema.names, row, strict=True)) for row in half]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "rollouts" / f"{step:06d}.parquet")
    wanted = {"a": PassRate(right=1.0, samples=2), "b": PassRate(right=0.0, samples=1)}
    assert read_pass_rates(tmp_path) == read_pass_rates(tmp_path / "rollouts") == wanted
    assert read_pass_rates(tmp_path / "rollouts" / "000001.parquet") == {"b": wanted["b"]}


def test_what_says_no_rate_is_refused(tmp_path: Path) -> None:
    bad = (
        {"id": "a"},
        {"pass_rate": 0.5},
        {"id": "a", "pass_rate": 1.5},
        {"id": "a", "correct": 9, "n": 8},
        {"id": "a", "pass_rate": 1, "n": 0},
    )
    for row in bad:
        with pytest.raises(UsageError, match=r"(?s)1 rows are no pass rates:\n  line 2: has no id with pass_rate"):
            read_pass_rates(lines(tmp_path / "rates.jsonl", {"id": "a", "pass_rate": 0.5}, row))
    with pytest.raises(UsageError, match="does not exist"):
        read_pass_rates(tmp_path / "none.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"it has no \.parquet files"):
        read_pass_rates(tmp_path / "empty")
    pq.write_table(pa.table({"question": ["q"]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="cannot be read as rollouts"):
        read_pass_rates(tmp_path / "other.parquet")
