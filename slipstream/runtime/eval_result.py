"""The result of `slipstream eval` as the JSON object that it prints, and back, for comparing. Pure but for reading the file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.core.records import EvaluationResult, OutcomeKind, Tally
from slipstream.loop.comparison import Scored
from slipstream.loop.eval_format import Format
from slipstream.loop.evaluate import UNJUDGED, Draw
from slipstream.telemetry.evaluations import evaluation_from_row, evaluation_row
from slipstream.telemetry.jsonl import Row

CUT_OFF_TOLD = 0.05  # share of answers cut off at the token limit from which a warning is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What an evaluation came to."""

    result: EvaluationResult
    model: str
    precision: str
    draw: Draw
    format: Format
    problems: int  # asked
    problems_hash: str
    tallies: tuple[Tally, ...]
    notes: tuple[str, ...]  # of the task: rows left out
    seconds: float


def result_row(found: Evaluated) -> Row:
    """The JSON object; scores stand under the keys of eval.jsonl."""
    row = evaluation_row(found.result, round(found.seconds, 2))
    row["seconds"] = row.pop("time")
    del row["samples"]
    return {
        **row,
        "model": found.model,
        "precision": found.precision,
        "temperature": found.draw.temperature,
        "max_tokens": found.draw.max_new_tokens,
        "seed": found.draw.seed,
        "problems": found.problems,
        "problems_hash": found.problems_hash,
        "format": found.format,
        "warnings": warnings(found),
        "notes": list(found.notes),
        "tallies": [[tally.id, tally.judged, tally.right] for tally in found.tallies],
    }


def warnings(found: Evaluated) -> list[str]:
    """What a reader of the scores must know, a sentence each."""
    result, told = found.result, []
    unjudged = {kind: result.outcomes[kind] for kind in UNJUDGED if kind in result.outcomes}
    if unjudged:
        kinds = ", ".join(f"{count} {_WORDS[kind]}" for kind, count in unjudged.items())
        total = sum(result.outcomes.values())
        told.append(
            f"{sum(unjudged.values())} of {total} answers have no verdict ({kinds}); they do not count, neither as right nor as wrong"
        )
    for k, counted in ((1, result.n), *((score.k, score.problems) for score in result.pass_at_k)):
        if counted < found.problems:
            answers = "no judged answer" if k == 1 else f"fewer than {k} judged answers"
            told.append(f"pass@{k} is over {counted} of {found.problems} problems; the others have {answers}")
    cut_off = result.extra["truncated_share"]
    if cut_off >= CUT_OFF_TOLD:
        told.append(f"{cut_off:.0%} of the answers were cut off at --max-tokens {found.draw.max_new_tokens}")
    return told


_WORDS = {OutcomeKind.TIMEOUT: "timeouts", OutcomeKind.INFRASTRUCTURE: "failures of the grader"}


def read_result(path: Path) -> Row:
    """A result that was saved. Raises UsageError when the file is none."""
    try:
        row = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    missing = [name for name, kind in _NEEDED.items() if not isinstance(row, dict) or not isinstance(row.get(name), kind)]
    if missing:
        raise UsageError(f"{path} is no result of `slipstream eval --json`: {', '.join(missing)} missing or of another type")
    return row


_NEEDED: dict[str, Any] = {
    "task": str,
    "step": int,
    "n": int,
    "pass@1": float,
    "ci": list,
    "drawn": int,
    "format": dict,
    "problems_hash": str,
    "tallies": list,
}


def scored(row: Row, path: Path) -> Scored:
    """What comparing needs of a row of `read_result`. Raises UsageError where it is damaged."""
    try:
        result = evaluation_from_row(row)
        tallies = tuple(Tally(id=str(id), judged=int(judged), right=int(right)) for id, judged, right in row["tallies"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is a damaged result of `slipstream eval --json`: {type(error).__name__}: {error}") from error
    return Scored(
        task=result.task,
        format=row["format"],
        problems_hash=row["problems_hash"],
        drawn=result.drawn,
        k=(1, *(score.k for score in result.pass_at_k)),
        tallies=tallies,
    )
