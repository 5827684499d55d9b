"""Sequences into packed rows of a fixed width, rows into microbatches of a fixed height. Pure numpy.

A position holds a token and speaks of the next one: its target, mask, advantage and log-probs. Packing changes neither value
nor gradient: attention stays inside a segment (and the prompt it shares, see `blocks`), and denominators are counted over
the whole step before it is split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import TrainingSequence
from slipstream.train.blocks import Block, aligned, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What one device call computes on. All arrays [rows, row_tokens]."""

    token_ids: np.ndarray  # int32
    positions: np.ndarray  # int32, place of the token in its sequence
    segment_ids: np.ndarray  # int32, 0 = padding
    parent_ids: np.ndarray  # int32, the segment whose tokens come before this one's; the segment itself where it starts at 0
    targets: np.ndarray  # int32, the next token of the sequence
    loss_mask: np.ndarray  # float32, 1 where the target is trained on
    advantages: np.ndarray  # float32
    behaviour_logprobs: np.ndarray  # float32
    versions: np.ndarray  # int32, version that drew the target; -1 where masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where something went."""

    microbatch: int
    row: int
    start: int  # first column


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a sequence's own positions are: those of its tokens `first` .. last but one."""

    at: Placement
    first: int


def place(lengths: Sequence[int], row_tokens: int, rows: int) -> list[Placement]:
    """A place for each length, in the order given: longest first, into the first row with room."""
    room: list[int] = []
    places: dict[int, Placement] = {}
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        row = next((row for row, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(row_tokens)
        places[index] = Placement(microbatch=row // rows, row=row % rows, start=row_tokens - room[row])
        room[row] -= length
    return [places[index] for index in range(len(lengths))]


def pack(sequences: Sequence[TrainingSequence], row_tokens: int, rows: int, align: int = 1) -> tuple[list[Microbatch], list[Placed]]:
    """Microbatches of `rows` rows that hold all sequences, and where each sequence is. Raises ValueError when one is too long.

    Everything starts at a multiple of `align`, which divides `row_tokens`.
    """
    laid = blocks(sequences, row_tokens, align)
    places = place([block.positions for block in laid], row_tokens, rows)
    microbatches = [_empty(rows, row_tokens) for _ in range(1 + max((at.microbatch for at in places), default=-1))]
    found: dict[int, Placed] = {}
    for block, at in zip(laid, places, strict=True):
        found |= _write_block(microbatches[at.microbatch], block, sequences, at, align)
    return microbatches, [found[index] for index in range(len(sequences))]


def padding_waste(microbatches: Sequence[Microbatch]) -> float:
    """Share of computed positions that hold no token."""
    return float(np.mean([microbatch.segment_ids == 0 for microbatch in microbatches])) if microbatches else 0.0


def unpack(arrays: Sequence[np.ndarray], sequences: Sequence[TrainingSequence], placed: Sequence[Placed]) -> list[np.ndarray]:
    """Per-position results [rows, row_tokens] of each microbatch, back as one array a sequence, aligned with its tokens.

    Entries of tokens that nothing of the sequence's own predicts (the first, and a shared prompt's) are 0.
    """
    found = []
    for sequence, where in zip(sequences, placed, strict=True):
        own = len(sequence.token_ids) - 1 - where.first
        values = arrays[where.at.microbatch][where.at.row, where.at.start : where.at.start + own]
        found.append(np.concatenate([np.zeros(where.first + 1, values.dtype), values]))
    return found


def _empty(rows: int, row_tokens: int) -> Microbatch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((rows, row_tokens), dtype)

    return Microbatch(
        token_ids=zeros(np.int32),
        positions=zeros(np.int32),
        segment_ids=zeros(np.int32),
        parent_ids=zeros(np.int32),
        targets=zeros(np.int32),
        loss_mask=zeros(np.float32),
        advantages=zeros(np.float32),
        behaviour_logprobs=zeros(np.float32),
        versions=np.full((rows, row_tokens), -1, np.int32),
    )


def _write_block(batch: Microbatch, block: Block, sequences: Sequence[TrainingSequence], at: Placement, align: int) -> dict[int, Placed]:
    """Write the shared prefix, then the branches; segments are numbered from 1 in each row."""
    parent, start = 0, at.start
    if block.shared:
        parent = int(batch.segment_ids[at.row].max()) + 1
        prefix = slice(start, start + block.shared)
        batch.token_ids[at.row, prefix] = sequences[block.members[0]].token_ids[: block.shared]
        batch.positions[at.row, prefix] = np.arange(block.shared)
        batch.segment_ids[at.row, prefix] = batch.parent_ids[at.row, prefix] = parent
        start += block.shared
    found = {}
    for index in block.members:
        found[index] = Placed(at=Placement(microbatch=at.microbatch, row=at.row, start=start), first=block.shared)
        start += aligned(_write_branch(batch, sequences[index], at.row, start, block.shared, parent), align)
    return found


def _write_branch(batch: Microbatch, sequence: TrainingSequence, row: int, start: int, first: int, parent: int) -> int:
    """Write tokens `first` .. last but one of the sequence; returns how many. Parent 0 means the branch starts the sequence."""
    count = len(sequence.token_ids) - 1 - first
    own, spoken_of = slice(start, start + count), slice(first + 1, None)
    segment = int(batch.segment_ids[row].max()) + 1
    batch.token_ids[row, own] = sequence.token_ids[first:-1]
    batch.positions[row, own] = np.arange(first, first + count)
    batch.segment_ids[row, own] = segment
    batch.parent_ids[row, own] = parent or segment
    batch.targets[row, own] = sequence.token_ids[spoken_of]
    batch.loss_mask[row, own] = sequence.loss_mask[spoken_of]
    batch.advantages[row, own] = sequence.advantages[spoken_of]
    batch.behaviour_logprobs[row, own] = sequence.behaviour_logprobs[spoken_of]
    batch.versions[row, own] = sequence.versions[spoken_of]
    return count
