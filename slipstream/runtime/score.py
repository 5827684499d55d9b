"""`slipstream score`: the learner's log-probs of given completions, under the weights of a model directory. Called by the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from slipstream.core.clock import SystemClock
from slipstream.core.errors import UsageError
from slipstream.core.records import TrainingSequence
from slipstream.models.attention.registry import DENSE_UP_TO, pick
from slipstream.models.attention.rule import attention_rule
from slipstream.models.numerics import EXACT, FAST, Numerics
from slipstream.models.parameters import Params
from slipstream.models.spec import ModelSpec
from slipstream.runtime.countdown import Countdown
from slipstream.runtime.input_rows import check_output, read_rows, row_id
from slipstream.runtime.serve.model import PAGE_TOKENS, open_model
from slipstream.runtime.serve.prompts import given_ids
from slipstream.telemetry.atomic import atomic_write_bytes
from slipstream.telemetry.jsonl import encode_row
from slipstream.train.packing import pack, unpack
from slipstream.train.shapes import one_shape
from slipstream.train.update import Layout, score
from slipstream.weights.files import read_params

SHORTEST_ROW = 64  # tokens; widths double from here, so few programs are compiled
POSITIONS = 2048  # of one device call, where a row is not longer by itself
SEQUENCES = 256  # packed at a time; bounds the memory for results


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What was written."""

    rows: int
    tokens: int  # completion tokens
    tokens_per_second: float  # of prompts and completions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    id: str | int
    prompt: int  # tokens
    sequence: TrainingSequence


def score_file(model: Path, source: Path, out: Path, *, temperature: float = 1.0, exact: bool = False, quiet: bool = False) -> Scored:
    """Write a row of log-probs for each row of `source`, one entry a completion token, float32.

    Raises UsageError for rows or a model that cannot be used, before anything is computed.
    """
    if not 0 < temperature < np.inf:
        raise UsageError(f"--temperature {temperature}: must be a positive number; greedy samples have log-probs at temperature 1")
    check_output(out)
    opened = open_model(model)
    rows = read_rows(source, lambda row: _read(row, opened.tokens, opened.spec.context))
    params = read_params(model, opened.spec)
    clock = SystemClock()
    progress = Countdown(len(rows), "rows", clock, (lambda _: None) if quiet else None)
    written: list[bytes] = []
    for part in _parts(rows):
        found = logprobs(params, opened.spec, [row.sequence for row in part], temperature, EXACT if exact else FAST)
        written += [encode_row({"id": row.id, "logprobs": values[row.prompt :]}) for row, values in zip(part, found, strict=True)]
        progress.add(len(part), sum(len(row.sequence.token_ids) for row in part))
    atomic_write_bytes(out, b"".join(written))
    progress.finish()
    tokens = sum(len(row.sequence.token_ids) - row.prompt for row in rows)
    return Scored(rows=len(rows), tokens=tokens, tokens_per_second=progress.tokens_per_second())


def logprobs(
    params: Params, spec: ModelSpec, sequences: Sequence[TrainingSequence], temperature: float = 1.0, numerics: Numerics = FAST
) -> list[np.ndarray]:
    """Log-prob of each token of each sequence, float32 [tokens], in the learner's float32 arithmetic; 0 in prompts."""
    width = _width(max(len(sequence.token_ids) for sequence in sequences))
    attention = "dense"
    if width > DENSE_UP_TO and not numerics.exact:
        attention = pick("packed", spec.heads, spec.kv_heads, spec.head_dim, "float32", attention_rule(spec))
    page_tokens = PAGE_TOKENS if numerics.exact else 1
    layout = Layout(scan=False, remat=False, attention=attention, precision="f32", page_tokens=page_tokens)
    microbatches, places = pack(sequences, one_shape(width, _rows(sequences, width), page_tokens))
    found = [np.asarray(score(params, spec, layout, batch, jnp.float32(temperature), numerics=numerics)[0]) for batch in microbatches]
    return unpack(found, sequences, places)


def _read(row: dict[str, Any], tokens: int, context: int) -> _Row:
    id = row_id(row)
    parts = []
    for name in ("prompt_ids", "completion_ids"):
        if not isinstance(row.get(name), list):
            raise UsageError(f"{name} is {'missing' if name not in row else 'no list'}; a list of token ids is needed")
        parts.append(given_ids(row[name], tokens, name) if row[name] or name == "prompt_ids" else np.zeros(0, np.int32))
    prompt, completion = parts
    if (total := len(prompt) + len(completion)) > context:
        raise UsageError(f"{len(prompt)} prompt + {len(completion)} completion tokens make {total}; the model's context is {context}")
    return _Row(id=id, prompt=len(prompt), sequence=_sequence(prompt, completion))


def _sequence(prompt: np.ndarray, completion: np.ndarray) -> TrainingSequence:
    token_ids = np.concatenate([prompt, completion])
    zeros = np.zeros(len(token_ids), np.float32)
    return TrainingSequence(
        token_ids=token_ids,
        loss_mask=np.arange(len(token_ids)) >= len(prompt),
        advantages=zeros,
        behaviour_logprobs=zeros,
        versions=np.full(len(token_ids), -1, np.int32),
    )


def _parts(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    for start in range(0, len(rows), SEQUENCES):
        yield rows[start : start + SEQUENCES]


def _rows(sequences: Sequence[TrainingSequence], width: int) -> int:
    """Rows of one device call: a power of two, no more than the sequences fill or `POSITIONS` hold."""
    filled = -(-sum(len(sequence.token_ids) for sequence in sequences) // width)
    return max(1, min(1 << (filled - 1).bit_length(), POSITIONS // width))


def _width(longest: int) -> int:
    """Columns of a packed row: a power of two."""
    return max(SHORTEST_ROW, 1 << (longest - 1).bit_length())
