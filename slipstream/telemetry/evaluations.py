"""An evaluation as a row of eval.jsonl and back."""

from slipstream.core.records import EvaluationResult
from slipstream.telemetry.jsonl import Row

_OWN_KEYS = frozenset({"step", "task", "n", "pass@1", "ci", "time", "samples"})


def evaluation_row(result: EvaluationResult, time_s: float) -> Row:
    """The row of `result`, evaluated at `time_s` (run clock). The task's own figures stand beside the common ones."""
    clash = _OWN_KEYS & result.extra.keys()
    if clash:
        raise ValueError(f"task {result.task} has figures with reserved names: {', '.join(sorted(clash))}")
    return {
        "step": result.step,
        "task": result.task,
        "n": result.n,
        "pass@1": result.pass_at_1,
        "ci": list(result.ci),
        "time": time_s,
        **result.extra,
        "samples": [dict(sample) for sample in result.samples],
    }


def evaluation_from_row(row: Row) -> EvaluationResult:
    """The result that `evaluation_row` wrote down."""
    low, high = row["ci"]
    return EvaluationResult(
        step=row["step"],
        task=row["task"],
        n=row["n"],
        pass_at_1=row["pass@1"],
        ci=(low, high),
        extra={name: value for name, value in row.items() if name not in _OWN_KEYS and isinstance(value, int | float)},
        samples=tuple(row.get("samples", ())),
    )
