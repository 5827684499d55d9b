"""How often each row was answered rightly, read from what evaluations and runs leave behind."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs.datasets import SkippedLine, read_dataset, refusal

_INDEX = re.compile(r"@[0-9]+\Z")  # of the prompt in its run
_COLUMNS = ("prompt_id", "outcome", "reward")
_IDS = ("id", "prompt_id", "row_id")
_JUDGED = (OutcomeKind.VALUE, OutcomeKind.WRONG, OutcomeKind.UNPARSEABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Of one row. Worked example: 3 right of 8 samples is right 3.0, samples 8, rate 0.375."""

    right: float
    samples: int

    @property
    def rate(self) -> float:
        return self.right / self.samples


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Pass rates by row id, from a JSONL file, one Parquet file of rollouts, a folder of them, or a run directory.

    A JSON row has an id and either pass_rate (with n, its samples, 1 unless told), or correct and n, or a single sample's outcome and
    reward. Samples are right as evaluations count: of outcome `value` with a reward of at least 1; what the grader failed on does not
    count. Raises UsageError when there is no such file, or a row in it says nothing of the kind.
    """
    totals: dict[str, tuple[float, int]] = {}
    for id, right, samples in _found(path):
        row = _INDEX.sub("", id)
        before = totals.get(row, (0.0, 0))
        totals[row] = (before[0] + right, before[1] + samples)
    if not totals:
        raise UsageError(f"{path} holds no pass rates")
    return {id: PassRate(right=right, samples=samples) for id, (right, samples) in totals.items() if samples}


def _found(path: Path) -> Iterator[tuple[str, float, int]]:
    if path.is_dir():
        folder = path / "rollouts" if (path / "rollouts").is_dir() else path
        files = sorted(folder.glob("*.parquet"))
        if not files:
            raise UsageError(f"{path} is no run directory and no folder of rollouts: it has no .parquet files")
        for file in files:
            yield from _rollouts(file)
    elif path.suffix == ".parquet":
        yield from _rollouts(path)
    else:
        yield from _json_rows(path)


def _rollouts(path: Path) -> Iterator[tuple[str, float, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as rollouts (columns {', '.join(_COLUMNS)}): {error}") from error
    for row in rows:
        if row["outcome"] in _JUDGED:
            yield row["prompt_id"], _is_right(row), 1


def _json_rows(path: Path) -> Iterator[tuple[str, float, int]]:
    data = read_dataset(path, id_fields=_IDS)
    bad = list(data.skipped)
    found = []
    for row in data.rows:
        told = _told(row.fields)
        id = next((row.fields[name] for name in _IDS if name in row.fields), None)
        if told is None or id is None:
            bad.append(SkippedLine(line=row.line, reason="has no id with pass_rate, with correct and n, or with outcome and reward"))
        else:
            found.append((str(id), *told))
    if bad:
        raise refusal(str(path), sorted(bad, key=lambda skip: skip.line), f"{len(bad)} rows are no pass rates")
    yield from found


def _told(row: Mapping[str, Any]) -> tuple[float, int] | None:
    """Right answers and samples of one JSON row; None where it says neither."""
    samples = row.get("n", 1)
    if not isinstance(samples, int) or samples < 1:
        return None
    if isinstance(rate := row.get("pass_rate"), int | float) and 0 <= rate <= 1:
        return rate * samples, samples
    if isinstance(right := row.get("correct"), int | float) and 0 <= right <= samples:
        return float(right), samples
    if "outcome" in row:
        return (_is_right(row), 1) if row["outcome"] in _JUDGED else (0.0, 0)
    return None


def _is_right(row: Mapping[str, Any]) -> float:
    return float(row["outcome"] == OutcomeKind.VALUE and (row.get("reward") or 0.0) >= 1.0)
