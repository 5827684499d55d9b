"""How a run ends: finished, or told to stop. Needs no jax. Used by whatever runs it and by the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.records import EvaluationResult
from slipstream.telemetry.evaluations import evaluation_from_row
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.run_directory import RunDirectory


class Interrupted(BaseException):
    """The run was told to stop; everything so far is kept. Not an Exception, so that no handler takes it for a failure."""

    def __init__(self, cause: str, step: int, directory: Path) -> None:
        super().__init__(f"stopped by {cause} after step {step}; go on with: slipstream train --resume --run-dir {directory}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run came to, for the summary."""

    directory: Path
    metrics: list[dict[str, Any]]
    evaluations: list[EvaluationResult]
    seconds: float  # run clock at the end, earlier starts included
    report: Path


def finished_run(directory: RunDirectory, seconds: float, report: Path) -> Finished:
    return Finished(
        directory=directory.path,
        metrics=read_jsonl(directory.metrics),
        evaluations=[evaluation_from_row(row) for row in read_jsonl(directory.evaluations)],
        seconds=seconds,
        report=report,
    )
