"""`slipstream grade`: a verifier alone, on rows of answers."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome
from slipstream.envs.verifiers.verifier import Verifier

PROGRESS_S = 2.0  # between two lines of progress
MOST_NAMED = 20  # rows whose verdict differs from the expected one


def grade_command(
    task: Annotated[str, typer.Option(help="Verifier: math, code, ...")],
    source: Annotated[Path, typer.Option("--in", help="JSONL (also .gz): rows with an id, an answer and what it is judged by.")],
    out: Annotated[Path, typer.Option(help="JSONL to write: id, outcome, reward, detail; a row for each row, in the same order.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that judge.")] = 2,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print counts and speed as one JSON object.")] = False,
) -> None:
    """Judge the answers of a file. Timeouts and failures of the grader are outcomes without a reward.

    Example: slipstream grade --task math --in cases.jsonl --out verdicts.jsonl --json
    """
    from slipstream.envs.verifiers.registry import find_verifier
    from slipstream.runtime.input_rows import check_output, read_rows

    verifier = find_verifier(task)
    check_output(out)
    rows = read_rows(source, lambda row: _checked(row, verifier))
    started = time.perf_counter()
    with verifier.open(workers) as judge, out.open("w", encoding="utf-8") as file:
        futures = [judge.submit(row) for row in rows]
        outcomes = list(_written(file, rows, (future.result() for future in futures), None if quiet else sys.stderr))
    summary = _summary(rows, outcomes, time.perf_counter() - started)
    if as_json:
        typer.echo(json.dumps({"task": task, "out": str(out), **summary}))
    elif not quiet:
        typer.echo(", ".join(f"{name} {value}" for name, value in summary["outcomes"].items()), err=True)


def _checked(row: dict[str, Any], verifier: Verifier) -> dict[str, Any]:
    """The row itself. Raises UsageError saying what is wrong with it."""
    from slipstream.runtime.input_rows import row_id

    row_id(row)
    if found := verifier.problem(row):
        raise UsageError(found)
    return row


def _written(file: TextIO, rows: list[dict[str, Any]], outcomes: Iterator[Outcome], progress: TextIO | None) -> Iterator[Outcome]:
    """Pass the outcomes on, each after its row is written."""
    told = time.monotonic()
    for done, (row, outcome) in enumerate(zip(rows, outcomes, strict=True), 1):
        verdict = {"id": row["id"], "outcome": outcome.kind, "reward": outcome.reward, "detail": outcome.detail}
        file.write(json.dumps(verdict) + "\n")
        if progress and time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{done}/{len(rows)} graded", file=progress, flush=True)
        yield outcome


def _summary(rows: list[dict[str, Any]], outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """Counts by outcome and speed; where rows say what is expected, how many verdicts agree."""
    summary: dict[str, Any] = {
        "rows": len(rows),
        "outcomes": dict(Counter(outcome.kind.value for outcome in outcomes)),
        "seconds": round(seconds, 3),
        "rows_per_second": round(len(rows) / seconds, 1),
    }
    known = [(row, outcome) for row, outcome in zip(rows, outcomes, strict=True) if row.get("expected") is not None]
    if known:
        differing = [row["id"] for row, outcome in known if (outcome.reward == 1.0) != (row["expected"] in (True, "pass"))]
        summary["expected"] = {"agree": len(known) - len(differing), "rows": len(known), "differing": differing[:MOST_NAMED]}
    return summary
