"""Sequences with one prompt, laid out so that the prompt is computed once: a shared prefix and one branch a sequence. Pure.

The prefix is the prompt without its last token; each branch starts with that token, because from it on the samples' targets
differ. Branches see the prefix and themselves, so values and gradients are those of separate sequences. For samples of
r tokens and prompts of p tokens a group of G costs p + G r positions instead of G (p + r).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from slipstream.core.records import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What must stand together in one row. The last token of a sequence is a target only, so it takes no position."""

    members: tuple[int, ...]  # indices of the sequences
    shared: int  # positions of the common prefix; 0 for a sequence alone
    positions: int  # in all
    pairs: int  # of positions of which one sees the other, itself included: what attention computes


def blocks(sequences: Sequence[TrainingSequence], row_length: Callable[[int], int], align: int = 1) -> list[Block]:
    """Blocks from neighbours with equal prompts, none longer than the row that its longest sequence needs.

    `row_length` gives the length of the row for so many positions, and raises where there is none. Longest branches first, each
    into the first block with room. Prefix and branches take whole multiples of `align` positions: exact arithmetic wants each to
    start on a page.
    """
    found: list[Block] = []
    for _, group in groupby(range(len(sequences)), key=lambda index: _prompt(sequences[index])):
        found += _share(list(group), sequences, row_length, align)
    return found


def _share(members: list[int], sequences: Sequence[TrainingSequence], row_length: Callable[[int], int], align: int) -> list[Block]:
    shared = len(_prompt_ids(sequences[members[0]])) - 1 if len(members) > 1 else 0
    shared = max(0, shared) // align * align
    own = {index: len(sequences[index].token_ids) - 1 for index in members}
    row_tokens = row_length(aligned(max(own.values()), align))
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(members, key=lambda index: (-own[index], index)):
        branch = aligned(own[index] - shared, align)
        place = next((place for place, free in enumerate(room) if free >= branch), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(row_tokens - shared)
        bins[place].append(index)
        room[place] -= branch
    return [_block(sorted(chosen), own, shared if len(chosen) > 1 else 0, align) for chosen in bins]


def _block(members: Sequence[int], own: Mapping[int, int], shared: int, align: int) -> Block:
    branches = [own[index] - shared for index in members]
    return Block(
        members=tuple(members),
        shared=shared,
        positions=shared + sum(aligned(branch, align) for branch in branches),
        pairs=_triangle(shared) + sum(branch * shared + _triangle(branch) for branch in branches),
    )


def _triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def aligned(positions: int, align: int) -> int:
    """`positions` and what is left empty behind them."""
    return -(-positions // align) * align


def _prompt(sequence: TrainingSequence) -> bytes:
    return _prompt_ids(sequence).tobytes()


def _prompt_ids(sequence: TrainingSequence) -> np.ndarray:
    """Tokens before the first that is trained on (all of them where none is)."""
    return sequence.token_ids[: int(sequence.loss_mask.argmax()) if sequence.loss_mask.any() else len(sequence.token_ids)]
