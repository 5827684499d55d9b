"""`slipstream bench grading`: verdicts a second of each verifier, beside what others do in one process where there is such a thing."""

import gzip
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

REPEATS = 20  # of the canaries, where no cases are given
PLAIN_SECONDS = 5  # math-verify's own limit, by signal


def grading_command(
    maths: Annotated[
        Path | None, typer.Option(help="JSONL[.gz] of maths rows with gold, response and perhaps expected; default canaries.")
    ] = None,
    workers: Annotated[list[int] | None, typer.Option(min=1, help="Processes; repeatable; default 1 and 2.")] = None,
    through_coordinator: Annotated[
        bool, typer.Option("--through-coordinator", help="Instead: how many verdicts graders of a run give, beside one process.")
    ] = False,
) -> None:
    """Rows a second that verifiers judge, warm, and how many verdicts are as expected.

    Example: slipstream bench grading --maths math_conformance/cases.jsonl.gz
    """
    from slipstream.cli.bench.grading_code import code_figures
    from slipstream.cli.bench.machine import machine
    from slipstream.envs.verifiers.math_verifier import MATH

    if through_coordinator:
        from slipstream.cli.bench.grading_remote import remote_figures

        print(json.dumps({"benchmark": "grading", "rows": [_tell(row) for row in remote_figures()], "machine": machine()}))
        return
    rows = _rows(maths) if maths else [{**canary.row, "expected": canary.right} for canary in MATH.canaries()] * REPEATS
    found = [_tell(_maths(rows, count)) for count in workers or (1, 2)]
    found.append(_tell(_plain_maths([row for row in rows if row.get("kind") != "hostile"])))
    found += [_tell(figures) for figures in code_figures()]
    print(json.dumps({"benchmark": "grading", "maths": str(maths or "canaries"), "rows": found, "machine": machine()}))


def _maths(rows: Sequence[Mapping[str, Any]], workers: int) -> dict[str, Any]:
    """The maths verifier with warm processes."""
    from slipstream.envs.verifiers.math_verifier import MATH

    with MATH.open(workers) as judge:
        for future in [judge.submit(rows[0]) for _ in range(4 * workers)]:
            future.result()

        def run() -> list[bool]:
            futures = [judge.submit(row) for row in rows]
            return [future.result().reward == 1.0 for future in futures]

        return _measured("math", f"{workers} processes", rows, run)


def _plain_maths(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """math-verify as its documentation has it, in this process; rows that are made to hang it are left out by the caller."""
    try:
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports] - optional, for comparison only
    except ImportError:
        return {"verifier": "math-verify", "how": "not installed: pip install math-verify[antlr4_13_2]"}

    def judged(row: Mapping[str, Any]) -> bool:
        gold, answer = parse(f"${row['gold']}$", parsing_timeout=PLAIN_SECONDS), parse(row["response"], parsing_timeout=PLAIN_SECONDS)
        return bool(verify(gold, answer, timeout_seconds=PLAIN_SECONDS))

    judged(rows[0])
    return _measured("math-verify", "in one process", rows, lambda: [judged(row) for row in rows])


def _measured(verifier: str, how: str, rows: Sequence[Mapping[str, Any]], run: Callable[[], list[bool]]) -> dict[str, Any]:
    started = time.perf_counter()
    verdicts = run()
    seconds = time.perf_counter() - started
    known = [verdict == row["expected"] for row, verdict in zip(rows, verdicts, strict=True) if row.get("expected") is not None]
    return {
        "verifier": verifier,
        "how": how,
        "judged": len(rows),
        "rows_per_second": round(len(rows) / seconds, 1),
        "as_expected": sum(known),
        "with_expected": len(known),
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    from slipstream.core.errors import UsageError

    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"--maths {path} cannot be read: {error}") from error


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(str(value) for value in row.values()), file=sys.stderr, flush=True)
    return row
