"""What the engine's benchmark asks of its peers is what it asks of the engine."""

import json
import runpy
from pathlib import Path

import pytest

from slipstream.cli.bench.workload import Workload, mixed, uniform

READER = Path(__file__).parents[2] / "benchmarks/peers/workload.py"


@pytest.mark.parametrize("workload", [uniform(4, 1000), mixed(32, 1000)], ids=["uniform", "mixed"])
def test_a_peer_draws_the_same_samples(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(workload.for_peer()))
    read = runpy.run_path(str(READER))["read_workload"](path)
    assert [(tuple(one.prompt), one.new_tokens) for one in read.samples] == list(zip(workload.prompts, workload.new_tokens, strict=True))
    assert (read.concurrency, read.longest) == (workload.concurrency, workload.longest)
