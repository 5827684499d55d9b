"""`slipstream bench packing`: its figures are of real lengths, and packing beats padding."""

import gzip
import json
from pathlib import Path

import pytest

from slipstream.cli.bench.packing import packing_command
from slipstream.core.errors import UsageError


def bench(data: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    packing_command(data=data, samples=24, steps=2, rows=4, devices=2, page_tokens=1, seed=0)
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_lengths_are_counted_from_prompts_with_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": "q" * 4 * n, "solution": "s" * 4 * n} for n in range(10, 100)] + [{"question": "no solution"}]
    with gzip.open(tmp_path / "gsm8k" / "train.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    out, errors = bench(tmp_path, capsys)
    found = json.loads(out)
    table = {(row["lengths"], row["method"]): row for row in found["rows_of_table"]}
    assert {lengths for lengths, _ in table} == {"lognormal 100-1000", "gsm8k"}
    assert found["counted"] == "bytes / 4 (no --model)"
    for lengths in ("lognormal 100-1000", "gsm8k"):
        ours, greedy, padded = (table[lengths, method] for method in ("karmarkar-karp", "sort + greedy", "pad to longest"))
        assert ours["waste"] <= greedy["waste"] + 1e-9 < padded["waste"]
        assert 1 <= ours["predicted_time"] < padded["predicted_time"]
        assert min(ours["microbatches_max_over_mean"], ours["devices_max_over_mean"]) >= 1
    assert "karmarkar-karp" in errors


def test_a_directory_without_lengths_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"none of gsm8k, math.* is a folder there"):
        bench(tmp_path, capsys)
