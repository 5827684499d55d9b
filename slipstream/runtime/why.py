"""What a run does at this moment, or did at its last: everything that `slipstream why` prints. Reads files only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.status import RunStatus, read_status
from slipstream.telemetry.waits import Explanation, explain

LATEST = 5  # events that are shown
TELLING = (
    *("overdue", "role_died", "role_silent", "lease_ended", "coordinator_away", "weights_failed", "quarantined"),
    *("verdict_failed", "verdict_overdue"),
    *("alarm", "warning", "run_finished"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """The answer."""

    process: str | None  # that has the run; None: none
    age_s: float | None  # of the status; None: there is none
    status: RunStatus | None
    explanation: Explanation | None
    events: tuple[dict[str, Any], ...]  # the latest that tell of trouble or of the end
    verdict: str  # one sentence


def reasons(path: Path, now_unix_s: float) -> Reasons:
    """Of the run in a directory. Raises UsageError where there is none."""
    directory = RunDirectory.open(path)
    process, status = directory.holder(), read_status(directory.status)
    rows = read_jsonl(directory.events) if directory.events.exists() else []
    telling = tuple(row for row in rows if row["kind"] in TELLING)[-LATEST:]
    explanation = explain(status) if status and process else None
    return Reasons(
        process=process,
        age_s=max(0.0, now_unix_s - status.unix_s) if status else None,
        status=status,
        explanation=explanation,
        events=telling,
        verdict=_verdict(directory, process, rows, explanation),
    )


def _verdict(directory: RunDirectory, process: str | None, rows: list[dict[str, Any]], explanation: Explanation | None) -> str:
    if process and explanation:
        return explanation.root
    if process:
        return "the run has just begun: nothing is known yet"
    if rows and rows[-1]["kind"] == "run_finished":
        return "the run is over: it has finished"
    cause = _last_line(directory.logs / "supervisor.log")
    go_on = f"go on with: slipstream train --resume --run-dir {directory.path}"
    return f"no process works on the run; it ended by {cause}; {go_on}" if cause else f"no process works on the run; {go_on}"


def _last_line(path: Path) -> str:
    """What failed last, as far as it was logged."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else ""
