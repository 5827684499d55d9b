"""Sequences into packed rows of a fixed width, rows into microbatches of a fixed height. Pure numpy.

Position t of a row predicts token t + 1, so targets, mask, advantages and log-probs are stored one place to the left of the
token they speak of. Packing changes neither value nor gradient: attention stays inside a segment, and denominators are
counted over the whole step before it is split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What one device call computes on. All arrays [rows, row_tokens]."""

    token_ids: np.ndarray  # int32
    positions: np.ndarray  # int32, from 0 in each segment
    segment_ids: np.ndarray  # int32, 0 = padding
    targets: np.ndarray  # int32, the next token of the segment
    loss_mask: np.ndarray  # float32, 1 where the target is trained on
    advantages: np.ndarray  # float32
    behaviour_logprobs: np.ndarray  # float32
    versions: np.ndarray  # int32, version that drew the target; -1 where masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a sequence went."""

    microbatch: int
    row: int
    start: int  # first column


def place(lengths: Sequence[int], row_tokens: int, rows: int) -> list[Placement]:
    """A place for each sequence, in the order given: longest first, into the first row with room.

    Raises ValueError for a sequence longer than a row.
    """
    room: list[int] = []
    places: dict[int, Placement] = {}
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        if length > row_tokens:
            raise ValueError(f"a sequence of {length} tokens does not fit a row of {row_tokens}; raise batch.row_tokens")
        row = next((row for row, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(row_tokens)
        places[index] = Placement(microbatch=row // rows, row=row % rows, start=row_tokens - room[row])
        room[row] -= length
    return [places[index] for index in range(len(lengths))]


def pack(sequences: Sequence[TrainingSequence], row_tokens: int, rows: int) -> tuple[list[Microbatch], list[Placement]]:
    """Microbatches of `rows` rows that hold all sequences, and where each sequence is."""
    places = place([len(sequence.token_ids) for sequence in sequences], row_tokens, rows)
    count = 1 + max((placement.microbatch for placement in places), default=-1)
    microbatches = [_empty(rows, row_tokens) for _ in range(count)]
    segments = np.zeros((count, rows), np.int32)
    for sequence, placement in zip(sequences, places, strict=True):
        segments[placement.microbatch, placement.row] += 1
        _write(microbatches[placement.microbatch], sequence, placement, int(segments[placement.microbatch, placement.row]))
    return microbatches, places


def padding_waste(sequences: Sequence[TrainingSequence], microbatches: Sequence[Microbatch]) -> float:
    """Share of computed positions that hold no token."""
    computed = sum(microbatch.token_ids.size for microbatch in microbatches)
    return 1.0 - sum(len(sequence.token_ids) for sequence in sequences) / computed if computed else 0.0


def unpack(arrays: Sequence[np.ndarray], sequences: Sequence[TrainingSequence], places: Sequence[Placement]) -> list[np.ndarray]:
    """Per-position results [rows, row_tokens] of each microbatch, back as one array a sequence, aligned with its tokens.

    Entry 0 is 0: the first token of a sequence is predicted by nothing.
    """
    found = []
    for sequence, placement in zip(sequences, places, strict=True):
        last = placement.start + len(sequence.token_ids) - 1
        values = arrays[placement.microbatch][placement.row, placement.start : last]
        found.append(np.concatenate([np.zeros(1, values.dtype), values]))
    return found


def _empty(rows: int, row_tokens: int) -> Microbatch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((rows, row_tokens), dtype)

    return Microbatch(
        token_ids=zeros(np.int32),
        positions=zeros(np.int32),
        segment_ids=zeros(np.int32),
        targets=zeros(np.int32),
        loss_mask=zeros(np.float32),
        advantages=zeros(np.float32),
        behaviour_logprobs=zeros(np.float32),
        versions=np.full((rows, row_tokens), -1, np.int32),
    )


def _write(microbatch: Microbatch, sequence: TrainingSequence, placement: Placement, segment: int) -> None:
    row, start, length = placement.row, placement.start, len(sequence.token_ids)
    whole, shifted = slice(start, start + length), slice(start, start + length - 1)
    microbatch.token_ids[row, whole] = sequence.token_ids
    microbatch.positions[row, whole] = np.arange(length)
    microbatch.segment_ids[row, whole] = segment
    microbatch.targets[row, shifted] = sequence.token_ids[1:]
    microbatch.loss_mask[row, shifted] = sequence.loss_mask[1:]
    microbatch.advantages[row, shifted] = sequence.advantages[1:]
    microbatch.behaviour_logprobs[row, shifted] = sequence.behaviour_logprobs[1:]
    microbatch.versions[row, shifted] = sequence.versions[1:]
