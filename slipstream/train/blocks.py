"""Sequences with one prompt, laid out so that the prompt is computed once: a shared prefix and one branch a sequence. Pure.

The prefix is the prompt without its last token; each branch starts with that token, because from it on the samples' targets
differ. Branches see the prefix and themselves, so values and gradients are those of separate sequences. For samples of
r tokens and prompts of p tokens a group of G costs p + G r positions instead of G (p + r).
"""

from collections.abc import Sequence
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


def blocks(sequences: Sequence[TrainingSequence], row_tokens: int, align: int = 1) -> list[Block]:
    """Blocks that fit a row, from neighbours with equal prompts; longest branches first, each into the first block with room.

    Prefix and branches take whole multiples of `align` positions: exact arithmetic wants each to start on a page.

    Raises ValueError for a sequence that is longer than a row.
    """
    found: list[Block] = []
    for _, group in groupby(range(len(sequences)), key=lambda index: _prompt(sequences[index])):
        found += _share(list(group), sequences, row_tokens, align)
    return found


def _share(members: list[int], sequences: Sequence[TrainingSequence], row_tokens: int, align: int) -> list[Block]:
    shared = len(_prompt_ids(sequences[members[0]])) - 1 if len(members) > 1 else 0
    shared = max(0, shared) // align * align
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(members, key=lambda index: (-len(sequences[index].token_ids), index)):
        branch = aligned(len(sequences[index].token_ids) - 1 - shared, align)
        if shared + branch > row_tokens:
            raise ValueError(
                f"a sequence of {len(sequences[index].token_ids)} tokens does not fit a row of {row_tokens}; raise batch.row_tokens"
            )
        place = next((place for place, free in enumerate(room) if free >= branch), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(row_tokens - shared)
        bins[place].append(index)
        room[place] -= branch
    return [
        Block(
            members=tuple(sorted(chosen)), shared=shared if len(chosen) > 1 else 0, positions=_positions(chosen, sequences, shared, align)
        )
        for chosen in bins
    ]


def aligned(positions: int, align: int) -> int:
    """`positions` and what is left empty behind them."""
    return -(-positions // align) * align


def _positions(members: Sequence[int], sequences: Sequence[TrainingSequence], shared: int, align: int) -> int:
    kept = shared if len(members) > 1 else 0
    return kept + sum(aligned(len(sequences[index].token_ids) - 1 - kept, align) for index in members)


def _prompt(sequence: TrainingSequence) -> bytes:
    return _prompt_ids(sequence).tobytes()


def _prompt_ids(sequence: TrainingSequence) -> np.ndarray:
    """Tokens before the first that is trained on (all of them where none is)."""
    return sequence.token_ids[: int(sequence.loss_mask.argmax()) if sequence.loss_mask.any() else len(sequence.token_ids)]
