"""Everything that a run directory says about its run, read once. For the report and the trace; a run may be unfinished or killed.

Missing files and keys are normal here: a run that died early has few of them.
"""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.records import Fate
from slipstream.telemetry.jsonl import Row, read_jsonl
from slipstream.telemetry.rollouts import read_rollouts
from slipstream.telemetry.run_directory import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    *("step", "fate", "advantage", "versions", "loss_mask", "completion_ids", "outcome", "reward", "style", "detail"),
    *("prompt_text", "completion_text", "answer", "sampler_id", "slot", "started_s", "finished_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumn:
    """A list column as one flat array: row r holds flat[offsets[r] : offsets[r + 1]]."""

    flat: np.ndarray
    offsets: np.ndarray  # int64 [rows + 1]

    @property
    def counts(self) -> np.ndarray:
        """Entries of each row."""
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        return self.flat[self.offsets[index] : self.offsets[index + 1]]


class RolloutColumns:
    """The rollouts of a run that have at least one token, a numpy array a column, ordered by step."""

    def __init__(self, directory: Path) -> None:
        import pyarrow as pa

        table = read_rollouts(directory, COLUMNS).combine_chunks()
        lengths = np.diff(_list_array(table, "versions").offsets.to_numpy())
        self._table = table.filter(pa.array(lengths > 0)).combine_chunks()

    def __len__(self) -> int:
        return self._table.num_rows

    def column(self, name: str) -> np.ndarray:
        """A scalar column; text as objects, absent rewards as NaN."""
        return self._table[name].to_numpy()

    def texts(self, name: str) -> list[str]:
        """A text column."""
        return self._table[name].to_pylist()

    def tokens(self, name: str) -> TokenColumn:
        """A list column."""
        array = _list_array(self._table, name)
        offsets = array.offsets.to_numpy().astype(np.int64)
        flat = array.values.to_numpy(zero_copy_only=False)
        return TokenColumn(flat=flat[offsets[0] : offsets[-1]], offsets=offsets - offsets[0])

    @cached_property
    def versions(self) -> TokenColumn:
        """Policy version of each token."""
        return self.tokens("versions")

    @cached_property
    def ages(self) -> np.ndarray:
        """Age of each rollout: the version that trained on it (its step) minus the oldest version of its tokens."""
        if not len(self):
            return np.zeros(0, np.int64)
        return self.column("step") - np.minimum.reduceat(self.versions.flat, self.versions.offsets[:-1])

    @cached_property
    def trained(self) -> np.ndarray:
        """Which rollouts were trained on."""
        return self.column("fate") == str(Fate.TRAINED)


def _list_array(table: "pa.Table", name: str) -> "pa.ListArray":
    """A list column of a table of at most one chunk."""
    import pyarrow as pa

    chunks = table[name].chunks
    return chunks[0] if chunks else pa.array([], table.schema.field(name).type)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run, read."""

    name: str  # of the directory
    config_text: str
    config: dict[str, Any]
    metrics: list[Row]
    evaluations: list[Row]
    events: list[Row]
    rollouts: RolloutColumns

    def setting(self, section: str, key: str) -> Any:
        """A setting of the configuration, or what the run said at its start, or None."""
        found = self.config.get(section)
        if isinstance(found, dict) and key in found:
            return found[key]
        started = [row for row in self.events if row.get("kind") == "run_started"]
        return started[-1].get("mode" if (section, key) == ("mode", "kind") else key) if started else None

    def figures(self, key: str) -> list[Any]:
        """One key of all metrics rows, None where a row lacks it."""
        return [row.get(key) for row in self.metrics]

    def spans(self) -> list[Row]:
        """The events that are spans."""
        return [row for row in self.events if row.get("kind") == "span"]

    def duration_s(self) -> float:
        """The last moment that anything speaks of, on the run's clock."""
        times = [row["time"] for row in (*self.metrics, *self.evaluations, *self.events) if isinstance(row.get("time"), int | float)]
        ends = self.rollouts.column("finished_s")
        return max([0.0, *times, float(ends.max(initial=0.0))])


def load_run(path: Path) -> RunData:
    """Read the run in `path`. `UsageError` when there is none."""
    run = RunDirectory.open(path)
    text = run.config.read_text(encoding="utf-8")
    return RunData(
        name=run.path.resolve().name,
        config_text=text,
        config=_parsed(text),
        metrics=[row for row in read_jsonl(run.metrics) if "step" in row],
        evaluations=[row for row in read_jsonl(run.evaluations) if "step" in row],
        events=read_jsonl(run.events),
        rollouts=RolloutColumns(run.rollouts),
    )


def _parsed(text: str) -> dict[str, Any]:
    """The configuration, or nothing when it cannot be read: a report of a damaged run is still worth having."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
