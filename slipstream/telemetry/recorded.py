"""Batches as their rollouts were written to disk: the inverse of `rollouts.write_batch`. Read by `slipstream replay`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import RunFailed
from slipstream.core.records import Batch, Fate, FinishReason, Outcome, OutcomeKind, Rollout
from slipstream.telemetry.rollouts import OUTCOME_COLUMNS

_DTYPES = {"prompt_ids": np.int32, "completion_ids": np.int32, "logprobs": np.float32, "versions": np.int32, "loss_mask": np.bool_}


def read_batch(directory: Path, step: int) -> tuple[Batch, np.ndarray]:
    """The batch of 0-based `step`, and the advantages [rollouts] float32 that it was trained with.

    Raises RunFailed where its file is absent or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = directory / f"{step:06d}.parquet"
    try:
        rows = pq.read_table(path).to_pylist()
        trained = [row for row in rows if row["fate"] == Fate.TRAINED]
        dropped = tuple(_rollout(row) for row in rows if row["fate"] == Fate.DROPPED)
        aside = tuple(_rollout(row) for row in rows if row["fate"] in (Fate.REQUEUED, Fate.UNJUDGED))
        batch = Batch(step=step, rollouts=tuple(_rollout(row) for row in trained), dropped=dropped, aside=aside)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{path} cannot be read: {error}") from error
    return batch, np.array([row["advantage"] for row in trained], np.float32)


def _rollout(row: dict[str, Any]) -> Rollout:
    outcome: dict[str, Any] = {field: row[column] for column, field in OUTCOME_COLUMNS.items() if column in row}
    outcome["kind"] = OutcomeKind(outcome["kind"])
    found: dict[str, Any] = {field.name: row[field.name] for field in fields(Rollout) if field.name != "outcome"}
    found |= {name: np.array(found[name], dtype) for name, dtype in _DTYPES.items()}
    return Rollout(**found | {"finish_reason": FinishReason(row["finish_reason"]), "outcome": Outcome(**outcome)})
