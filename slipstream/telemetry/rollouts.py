"""Rollouts on disk, with their fate: one Parquet file a learner step, readable by any data tool."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.records import Batch, Fate, Rollout
from slipstream.telemetry.atomic import atomic_write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_TOLD = ("reward", "format_ok", "style", "detail", "calls", "failed_calls", "side_turns")
OUTCOME_COLUMNS = {"outcome": "kind"} | {name: name for name in _TOLD}  # column: field
_ARRAY_COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "versions", "loss_mask")


def rollout_schema() -> "pa.Schema":
    """Columns of rollouts/*.parquet: the fields of `Rollout` with its outcome flattened, then step, fate and advantage."""
    import pyarrow as pa

    int32_list, float32_list, bool_list = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.bool_())
    return pa.schema(
        {
            "step": pa.int32(),
            "fate": pa.string(),
            "advantage": pa.float32(),
            "run_id": pa.string(),
            "lineage": pa.int32(),
            "ticket_id": pa.string(),
            "ticket_index": pa.int64(),
            "prompt_id": pa.string(),
            "group_id": pa.string(),
            "sample_index": pa.int32(),
            "seed": pa.uint64(),
            "prompt_ids": int32_list,
            "completion_ids": int32_list,
            "logprobs": float32_list,
            "versions": int32_list,
            "loss_mask": bool_list,
            "finish_reason": pa.string(),
            "outcome": pa.string(),
            "reward": pa.float64(),
            "format_ok": pa.bool_(),
            "style": pa.string(),
            "detail": pa.string(),
            "calls": pa.int32(),
            "failed_calls": pa.int32(),
            "side_turns": pa.int32(),
            "prompt_text": pa.string(),
            "completion_text": pa.string(),
            "answer": pa.string(),
            "sampler_id": pa.string(),
            "sampler_class": pa.string(),
            "weight_digest": pa.string(),
            "slot": pa.int32(),
            "claimed_s": pa.float64(),
            "started_s": pa.float64(),
            "finished_s": pa.float64(),
        }
    )


def write_batch(directory: Path, batch: Batch, advantages: Sequence[float]) -> Path:
    """As `write_rollouts`: those trained on with their advantages, then those dropped and set aside, all of whose advantages are 0.

    Over all files each rollout that the ledger took is there once, but for what was set aside after the last batch was fixed.
    """
    useless = [(rollout, Fate.DROPPED) for rollout in batch.dropped]
    useless += [(rollout, Fate.UNJUDGED if rollout.outcome.reward is None else Fate.REQUEUED) for rollout in batch.aside]
    fates = [Fate.TRAINED] * len(batch.rollouts) + [fate for _, fate in useless]
    rollouts = [*batch.rollouts, *(rollout for rollout, _ in useless)]
    return write_rollouts(directory, batch.step, rollouts, fates, [*advantages, *[0.0] * len(useless)])


def write_rollouts(
    directory: Path, step: int, rollouts: Sequence[Rollout], fate: Fate | Sequence[Fate], advantages: Sequence[float]
) -> Path:
    """Write the rollouts of 0-based `step` to NNNNNN.parquet in `directory`, atomically. The same call writes the same bytes.

    `fate`: of all of them, or of each.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(rollouts) != len(advantages):
        raise ValueError(f"step {step}: {len(rollouts)} rollouts and {len(advantages)} advantages")
    schema = rollout_schema()
    given: dict[str, list[Any]] = {
        "step": [step] * len(rollouts),
        "fate": [str(fate)] * len(rollouts) if isinstance(fate, Fate) else [str(one) for one in fate],
        "advantage": [float(advantage) for advantage in advantages],
    }
    columns = {name: given[name] if name in given else _column(rollouts, name) for name in schema.names}
    table = pa.table([_array(columns[field.name], field.type) for field in schema], schema=schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    path = directory / f"{step:06d}.parquet"
    atomic_write_bytes(path, buffer.getvalue())
    return path


def read_rollouts(directory: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    """All rollouts in step order (all columns, or those named); an empty table of the right columns where there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(columns) if columns is not None else None
    schema = rollout_schema()
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    paths = sorted(directory.glob("[0-9]*.parquet"), key=lambda path: int(path.stem))
    tables = [pq.read_table(path, columns=names) for path in paths]
    return pa.concat_tables([schema.empty_table(), *tables])


def _column(rollouts: Sequence[Rollout], name: str) -> list[Any]:
    if name in OUTCOME_COLUMNS:
        return [getattr(rollout.outcome, OUTCOME_COLUMNS[name]) for rollout in rollouts]
    return [getattr(rollout, name) for rollout in rollouts]


def _array(values: list[Any], kind: "pa.DataType") -> "pa.Array":
    """Token lists go through one flat numpy array each: a list of numpy arrays is slow to convert."""
    import pyarrow as pa

    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    offsets = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
    dtype = kind.value_type.to_pandas_dtype()
    flat = np.concatenate([np.asarray(value, dtype=dtype) for value in values]) if values else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind.value_type))
