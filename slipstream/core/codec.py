"""Rollouts as bytes and back, exactly: the form in which the ledger's journal keeps them.

One record is a fixed header, a JSON head with the scalar fields, and the token arrays raw and little-endian. No pickle, so
reading a journal can never run code. Anything that is not exactly such a record is refused. Parquet is for people; this is not.
"""

import json
import struct
from operator import attrgetter
from typing import Any

import numpy as np

from slipstream.core.records import FinishReason, Outcome, OutcomeKind, Rollout

MAGIC = b"SLRO"
FORMAT_VERSION = 3
_HEADER = struct.Struct("<4sHxxIII")  # magic, format version, padding, head bytes, prompt tokens, completion tokens

_INT32, _FLOAT32, _BOOL = np.dtype("<i4"), np.dtype("<f4"), np.dtype("?")
_ARRAYS = (("prompt_ids", _INT32), ("completion_ids", _INT32), ("logprobs", _FLOAT32), ("versions", _INT32), ("loss_mask", _BOOL))
_SCALARS = (
    *("run_id", "lineage", "ticket_id", "ticket_index", "prompt_id", "group_id", "sample_index", "seed", "finish_reason"),
    *("prompt_text", "completion_text", "answer", "sampler_id", "sampler_class", "weight_digest", "slot"),
    *("claimed_s", "started_s", "finished_s"),
)
_OUTCOME = ("kind", "reward", "format_ok", "style", "detail", "calls", "failed_calls", "side_turns")
_scalars, _outcome, _arrays = attrgetter(*_SCALARS), attrgetter(*_OUTCOME), attrgetter(*(name for name, _ in _ARRAYS))
_to_json = json.JSONEncoder(separators=(",", ":")).encode  # made once: making it takes as long as using it


class CodecError(ValueError):
    """The bytes are not a rollout of this format, or the rollout's arrays are not of the types its record promises."""


def rollout_to_bytes(rollout: Rollout) -> bytes:
    """The rollout as one self-contained byte string; `rollout_from_bytes` gives back an equal one, to the bit."""
    head_bytes = _to_json((_scalars(rollout), _outcome(rollout.outcome))).encode("ascii")
    arrays = [_array_bytes(rollout, array, name, dtype) for array, (name, dtype) in zip(_arrays(rollout), _ARRAYS, strict=True)]
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(head_bytes), len(rollout.prompt_ids), len(rollout.completion_ids))
    return b"".join((header, head_bytes, *arrays))


def rollout_from_bytes(data: bytes) -> Rollout:
    """The rollout that `rollout_to_bytes` wrote. Its arrays are read-only views of `data`. Raises `CodecError` on anything else."""
    head_bytes, prompt_tokens, completion_tokens = _read_header(data)
    offset = _HEADER.size + head_bytes
    fields = _read_head(data[_HEADER.size : offset])
    for name, dtype in _ARRAYS:
        tokens = prompt_tokens if name == "prompt_ids" else completion_tokens
        fields[name] = np.frombuffer(data, dtype=dtype, count=tokens, offset=offset)
        offset += tokens * dtype.itemsize
    return Rollout(**fields)


def _array_bytes(rollout: Rollout, array: np.ndarray, name: str, dtype: np.dtype[Any]) -> bytes:
    if array.dtype != dtype or array.ndim != 1:
        raise CodecError(
            f"rollout {rollout.ticket_id}/{rollout.sample_index}: {name} is {array.dtype} [{array.ndim}d], not {dtype.name} [1d]"
        )
    return array.tobytes()


def _read_header(data: bytes) -> tuple[int, int, int]:
    """Head bytes, prompt tokens and completion tokens, once magic, format version and total length are right."""
    if len(data) < _HEADER.size:
        raise CodecError(f"a rollout record has at least {_HEADER.size} bytes, got {len(data)}")
    magic, version, head_bytes, prompt_tokens, completion_tokens = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"not a rollout record: it starts with {magic!r}, not {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise CodecError(f"rollout record of format {version}; this program reads format {FORMAT_VERSION}")
    tokens = {"prompt_ids": prompt_tokens}
    array_bytes = sum(tokens.get(name, completion_tokens) * dtype.itemsize for name, dtype in _ARRAYS)
    expected = _HEADER.size + head_bytes + array_bytes
    if len(data) != expected:
        raise CodecError(f"rollout record of {len(data)} bytes where its header says {expected}")
    return head_bytes, prompt_tokens, completion_tokens


def _read_head(head: bytes) -> dict[str, Any]:
    """The scalar fields by name, enums restored."""
    try:
        scalars, outcome = json.loads(head)
        fields = dict(zip(_SCALARS, scalars, strict=True))
        verdict = dict(zip(_OUTCOME, outcome, strict=True))
        fields["finish_reason"] = FinishReason(fields["finish_reason"])
        verdict["kind"] = OutcomeKind(verdict["kind"])
    except (ValueError, TypeError) as error:
        raise CodecError(f"rollout record with a broken head: {error}") from error
    fields["outcome"] = Outcome(**verdict)
    return fields
