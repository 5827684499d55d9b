"""Rows of eval.jsonl: written and read back, those of earlier versions too; a report of both; what is said of them."""

import json
from pathlib import Path

import pytest

from slipstream.core.records import EvaluationResult, PassAtK
from slipstream.telemetry.evaluations import evaluation_from_row, evaluation_row
from slipstream.telemetry.page_data import page_data
from slipstream.telemetry.progress import evaluation_line
from slipstream.telemetry.run_data import load_run
from tests.telemetry.synthetic import Shape, make_run

RESULT = EvaluationResult(
    step=4,
    task="sums",
    n=62,
    pass_at_1=0.75,
    ci=(0.7, 0.8),
    pass_at_k=(PassAtK(k=2, value=0.8, ci=(0.7, 0.9), problems=60), PassAtK(k=16, value=0.9, ci=(0.8, 1.0), problems=50)),
    drawn=16,
    outcomes={"value": 40, "timeout": 3},
    format_hash="f00d",
    weight_digest="beef",
    extra={"style_share": 0.5},
    samples=({"prompt": "1+1=", "completion": "2", "answer": "2", "reward": 1.0},),
)
OLD = {"step": 0, "task": "sums", "n": 64, "pass@1": 0.25, "ci": [0.2, 0.3], "time": 1.0, "style_share": 0.5, "samples": []}


def test_a_row_has_the_keys_that_others_read() -> None:
    row = json.loads(json.dumps(evaluation_row(RESULT, 12.5)))
    assert {name: row[name] for name in ("step", "task", "n", "pass@1", "ci", "pass@16", "ci@16", "n@16", "format_hash", "time")} == {
        "step": 4,
        "task": "sums",
        "n": 62,
        "pass@1": 0.75,
        "ci": [0.7, 0.8],
        "pass@16": 0.9,
        "ci@16": [0.8, 1.0],
        "n@16": 50,
        "format_hash": "f00d",
        "time": 12.5,
    }
    assert evaluation_from_row(row) == RESULT


def test_a_row_of_an_earlier_version_is_read() -> None:
    assert evaluation_from_row(OLD) == EvaluationResult(
        step=0, task="sums", n=64, pass_at_1=0.25, ci=(0.2, 0.3), extra={"style_share": 0.5}, samples=()
    )


@pytest.mark.parametrize("name", ["pass@2", "ci@4", "n@8", "weights", "outcomes"])
def test_figures_of_a_task_take_no_reserved_name(name: str) -> None:
    clash = EvaluationResult(step=0, task="sums", n=1, pass_at_1=0.0, ci=(0.0, 1.0), extra={name: 1.0})
    with pytest.raises(ValueError, match=f"reserved names: {name}"):
        evaluation_row(clash, 0.0)


def test_a_report_reads_old_and_new_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=2, rollouts_per_step=8, slots=4))
    run.evaluations.write_text("".join(json.dumps(row) + "\n" for row in (OLD, evaluation_row(RESULT, 12.5))))
    found = page_data(load_run(run.path), None, None)["evaluations"]
    assert (found["step"], found["pass_at_1"], found["low"], found["high"]) == ([0, 4], [0.25, 0.75], [0.2, 0.7], [0.3, 0.8])


def test_a_line_tells_all_scores_and_what_was_left_out() -> None:
    line = evaluation_line(RESULT)
    assert "sums greedy 0.750 (95 % 0.70 to 0.80, n = 62), pass@2 0.800 (0.70 to 0.90), pass@16 0.900 (0.80 to 1.00)" in line
    assert "3 answers without a verdict left out" in line
