"""Sequences into packed rows, rows into microbatches, all of few shapes. Pure numpy; called by the learner and by `score`.

A position holds a token and speaks of the next one: its target, mask, advantage and log-probs. Packing changes neither value
nor gradient: attention stays inside a segment (and the prompt it shares, see `blocks`), and denominators are counted over
the whole step before it is split. Nothing depends on anything but the sequences and the shapes.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import TrainingSequence
from slipstream.train.balance import equal_parts
from slipstream.train.blocks import Block, aligned, blocks
from slipstream.train.shapes import Shapes


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row and what stands in it, from the left."""

    tokens: int
    blocks: tuple[int, ...]  # indices
    cost: float  # predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which blocks share a row and which rows a microbatch."""

    blocks: list[Block]
    microbatches: list[tuple[Row | None, ...]]  # rows of one length, the first device's first; None = left empty
    cost: float  # predicted, of all computed rows


def pack(sequences: Sequence[TrainingSequence], shapes: Shapes) -> tuple[list[Microbatch], list[Placed]]:
    """Microbatches that hold all sequences, and where each sequence is. Raises ValueError when one is too long for any row."""
    if not sequences:
        return [], []
    chosen = plan(sequences, shapes)
    microbatches: list[Microbatch] = []
    found: dict[int, Placed] = {}
    for number, rows in enumerate(chosen.microbatches):
        microbatches.append(_empty(len(rows), next(row.tokens for row in rows if row)))
        for height, row in enumerate(rows):
            start = 0
            for index in row.blocks if row else ():
                at = Placement(microbatch=number, row=height, start=start)
                found |= _write_block(microbatches[-1], chosen.blocks[index], sequences, at, shapes.align)
                start += chosen.blocks[index].positions
    return microbatches, [found[index] for index in range(len(sequences))]


def plan(sequences: Sequence[TrainingSequence], shapes: Shapes) -> Plan:
    """The cheapest of the plans with each row length as the usual one; longer rows are for what does not fit it."""
    plans = (_plan(sequences, usual, shapes) for usual in shapes.row_lengths)
    return min(plans, key=lambda plan: plan.cost)


def _plan(sequences: Sequence[TrainingSequence], usual: int, shapes: Shapes) -> Plan:
    def row_length(positions: int) -> int:
        return shapes.row_length(max(usual, positions))

    laid = blocks(sequences, row_length, shapes.align)
    filled = fill([block.positions for block in laid], [row_length(block.positions) for block in laid])
    rows = [
        Row(tokens=tokens, blocks=members, cost=shapes.cost.of_row(tokens, sum(laid[index].pairs for index in members)))
        for tokens, members in filled
    ]
    microbatches: list[tuple[Row | None, ...]] = []
    cost = sum(row.cost for row in rows)
    for tokens in sorted({row.tokens for row in rows}, reverse=True):
        stacked = _stack([row for row in rows if row.tokens == tokens], tokens, shapes)
        cost += shapes.cost.of_row(tokens, 0) * sum(row is None for microbatch in stacked for row in microbatch)
        microbatches += stacked
    return Plan(blocks=laid, microbatches=microbatches, cost=cost)


def fill(sizes: Sequence[int], row_lengths: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Rows, each with its length and the sizes (by index) in it: largest first, each into the row that it fills most (best fit).

    Where no row has room, one of that size's entry in `row_lengths` is opened.
    """
    rows: list[tuple[int, list[int]]] = []
    room: list[tuple[int, int]] = []  # (free positions, row), rising
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        tightest = bisect_left(room, (sizes[index], 0))
        if tightest == len(room):
            rows.append((row_lengths[index], []))
            free, row = row_lengths[index], len(rows) - 1
        else:
            free, row = room.pop(tightest)
        rows[row][1].append(index)
        insort(room, (free - sizes[index], row))
    return [(tokens, tuple(members)) for tokens, members in rows]


def _stack(rows: Sequence[Row], row_tokens: int, shapes: Shapes) -> list[tuple[Row | None, ...]]:
    """Rows of one length in microbatches; those of a height, and the devices in each, have about equal work."""
    heights = shapes.cover(len(rows), row_tokens)
    left = sorted(range(len(rows)), key=lambda index: (-rows[index].cost, index))
    found: list[tuple[Row | None, ...]] = []
    for height in sorted(set(heights)):
        share, together = height // shapes.devices, heights.count(height)
        taken = left if height == max(heights) else _evenly(left, together * height)
        chosen = set(taken)
        left = [index for index in left if index not in chosen]
        parts = equal_parts([rows[index].cost for index in taken], together * shapes.devices, share)
        filled = [[rows[taken[member]] for member in part] + [None] * (share - len(part)) for part in parts]
        for first in range(0, len(parts), shapes.devices):  # devices wait for each other, so neighbours in cost work together
            found.append(tuple(row for part in filled[first : first + shapes.devices] for row in part))
    return found


def _evenly(items: Sequence[int], count: int) -> list[int]:
    """`count` of the items, evenly spaced."""
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


def padding_waste(microbatches: Sequence[Microbatch]) -> float:
    """Share of computed positions that hold no token, those left empty up to the next page included."""
    computed = sum(microbatch.segment_ids.size for microbatch in microbatches)
    return sum(int((microbatch.segment_ids == 0).sum()) for microbatch in microbatches) / computed if computed else 0.0


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
