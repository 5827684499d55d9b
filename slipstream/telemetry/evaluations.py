"""An evaluation as a row of eval.jsonl and back. Rows of earlier versions, which know only greedy pass@1, are read as well."""

import re

from slipstream.core.records import EvaluationResult, PassAtK
from slipstream.telemetry.jsonl import Row

_OWN_KEYS = frozenset({"step", "task", "n", "pass@1", "ci", "drawn", "outcomes", "format_hash", "weights", "time", "samples"})
_SCORE = re.compile(r"(?:pass|ci|n)@([0-9]+)")


def evaluation_row(result: EvaluationResult, time_s: float) -> Row:
    """The row of `result`, evaluated at `time_s` (run clock). The task's own figures stand beside the common ones."""
    clash = {name for name in result.extra if name in _OWN_KEYS or _SCORE.fullmatch(name)}
    if clash:
        raise ValueError(f"task {result.task} has figures with reserved names: {', '.join(sorted(clash))}")
    return {
        "step": result.step,
        "task": result.task,
        "n": result.n,
        "pass@1": result.pass_at_1,
        "ci": list(result.ci),
        **{name: value for score in result.pass_at_k for name, value in _scores(score).items()},
        "drawn": result.drawn,
        "outcomes": dict(result.outcomes),
        "format_hash": result.format_hash,
        "weights": result.weight_digest,
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
        pass_at_k=tuple(_score(row, k) for k in sampled_ks(row)),
        drawn=row.get("drawn", 1),
        outcomes=row.get("outcomes", {}),
        format_hash=row.get("format_hash", ""),
        weight_digest=row.get("weights", ""),
        extra={name: value for name, value in row.items() if _is_figure(name) and isinstance(value, int | float)},
        samples=tuple(row.get("samples", ())),
    )


def _is_figure(name: str) -> bool:
    return name not in _OWN_KEYS and not _SCORE.fullmatch(name)


def sampled_ks(row: Row) -> list[int]:
    """Each k above 1 that the row has a score of, rising."""
    found = (_SCORE.fullmatch(name) for name in row if name.startswith("pass@"))
    return sorted(k for match in found if match and (k := int(match[1])) > 1)


def _scores(score: PassAtK) -> Row:
    return {f"pass@{score.k}": score.value, f"ci@{score.k}": list(score.ci), f"n@{score.k}": score.problems}


def _score(row: Row, k: int) -> PassAtK:
    low, high = row[f"ci@{k}"]
    return PassAtK(k=k, value=row[f"pass@{k}"], ci=(low, high), problems=row[f"n@{k}"])
