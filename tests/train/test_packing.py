"""Packing places every sequence once, whole and alone but for a shared prompt, and unpacking finds it again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import TrainingSequence
from slipstream.train.blocks import blocks
from slipstream.train.packing import Microbatch, pack, padding_waste, place, unpack

LENGTHS = st.lists(st.integers(1, 16), max_size=30)
GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(1, 10), min_size=1, max_size=5)), max_size=8)  # prompt, completions


def sequences_of(groups: list[tuple[int, list[int]]]) -> list[TrainingSequence]:
    """Samples of prompts; every number but those of a common prompt is its own, so a mix-up shows."""
    made, used = [], 0
    for prompt_tokens, completions in groups:
        prompt = np.arange(used + 1, used + prompt_tokens + 1)
        used += prompt_tokens
        for completion_tokens in completions:
            ids = np.concatenate([prompt, np.arange(used + 1, used + completion_tokens + 1)])
            used += completion_tokens
            mask = np.arange(len(ids)) >= prompt_tokens
            made.append(
                TrainingSequence(
                    token_ids=ids.astype(np.int32),
                    loss_mask=mask,
                    advantages=np.where(mask, ids + 0.5, 0).astype(np.float32),
                    behaviour_logprobs=np.where(mask, -ids, 0).astype(np.float32),
                    versions=np.where(mask, ids * 2, -1).astype(np.int32),
                )
            )
    return made


@given(LENGTHS, st.integers(16, 40), st.integers(1, 5))
def test_places_neither_overlap_nor_overflow(lengths: list[int], row_tokens: int, rows: int) -> None:
    places = place(lengths, row_tokens, rows)
    taken: set[tuple[int, int, int]] = set()
    filled: dict[int, int] = {}
    for found, length in zip(places, lengths, strict=True):
        assert 0 <= found.row < rows
        assert 0 <= found.start <= row_tokens - length
        cells = {(found.microbatch, found.row, found.start + index) for index in range(length)}
        assert not cells & taken
        taken |= cells
        filled[found.microbatch * rows + found.row] = filled.get(found.microbatch * rows + found.row, 0) + length
    assert set(filled) == set(range(len(filled)))  # no empty row before the last
    fill = sorted(filled.values())
    assert len(fill) < 2 or fill[0] + fill[1] > row_tokens  # two rows are never opened where one would do


@given(GROUPS, st.integers(16, 40))
def test_blocks_hold_every_sequence_once_and_fit_a_row(groups: list[tuple[int, list[int]]], row_tokens: int) -> None:
    sequences = sequences_of(groups)
    found = blocks(sequences, row_tokens)
    assert sorted(index for block in found for index in block.members) == list(range(len(sequences)))
    for block in found:
        prompts = {int(sequences[index].loss_mask.argmax()) for index in block.members}
        own = [len(sequences[index].token_ids) - 1 - block.shared for index in block.members]
        assert block.positions == block.shared + sum(own) <= row_tokens
        assert block.shared in ({0} if len(block.members) == 1 else {prompts.pop() - 1})


@given(GROUPS, st.integers(16, 40), st.integers(1, 4))
def test_every_token_stands_where_its_past_can_be_seen(groups: list[tuple[int, list[int]]], row_tokens: int, rows: int) -> None:
    """For each trained token, the positions that its predictor may see are exactly the tokens before it, at their places."""
    sequences = sequences_of(groups)
    microbatches, placed = pack(sequences, row_tokens, rows)
    for sequence, where in zip(sequences, placed, strict=True):
        batch, row = microbatches[where.at.microbatch], where.at.row
        for index in range(where.first, len(sequence.token_ids) - 1):
            column = where.at.start + index - where.first
            segments, segment, parent = batch.segment_ids[row], batch.segment_ids[row, column], batch.parent_ids[row, column]
            seen = [c for c in range(column + 1) if segments[c] in (segment, parent)]
            assert batch.token_ids[row, seen].tolist() == sequence.token_ids[: index + 1].tolist()
            assert batch.positions[row, seen].tolist() == list(range(index + 1))
            assert batch.targets[row, column] == sequence.token_ids[index + 1]
            assert batch.loss_mask[row, column] == float(sequence.loss_mask[index + 1])
            assert batch.advantages[row, column] == sequence.advantages[index + 1]
            assert batch.behaviour_logprobs[row, column] == sequence.behaviour_logprobs[index + 1]
            assert batch.versions[row, column] == sequence.versions[index + 1]
    trained = sum(float(batch.loss_mask.sum()) for batch in microbatches)
    assert trained == sum(int(sequence.loss_mask[1:].sum()) for sequence in sequences)  # each once, none twice
    for batch in microbatches:
        for array in (batch.token_ids, batch.positions, batch.targets, batch.loss_mask, batch.advantages):
            assert array.shape == (rows, row_tokens)
            assert not array[batch.segment_ids == 0].any()


@given(GROUPS, st.integers(16, 24), st.integers(1, 4))
def test_unpacking_gives_back_each_sequences_values(groups: list[tuple[int, list[int]]], row_tokens: int, rows: int) -> None:
    sequences = sequences_of(groups)
    microbatches, placed = pack(sequences, row_tokens, rows)
    found = unpack([batch.targets.astype(np.float32) for batch in microbatches], sequences, placed)
    for values, sequence in zip(found, sequences, strict=True):
        np.testing.assert_array_equal(values[sequence.loss_mask], sequence.token_ids[sequence.loss_mask])
        assert values.shape == sequence.token_ids.shape


def test_a_group_computes_its_prompt_once() -> None:
    """A prompt of 5 and four completions of 3: 4 shared positions and 3 a branch, against 7 a sequence alone."""
    (block,) = blocks(sequences_of([(5, [3, 3, 3, 3])]), 32)
    assert (block.shared, block.positions) == (4, 16)


def test_order_decides_ties_only() -> None:
    """Equal inputs, equal packing; the longest goes first."""
    lengths = [3, 9, 3, 7]
    assert place(lengths, 12, 2) == place(lengths, 12, 2)
    first, second = place(lengths, 12, 2)[1], place(lengths, 12, 2)[3]
    assert (first.row, first.start) == (0, 0)
    assert (second.row, second.start) == (1, 0)


def test_too_long_is_said_with_the_setting_to_raise() -> None:
    with pytest.raises(ValueError, match=r"a sequence of 18 tokens does not fit a row of 16; raise batch\.row_tokens"):
        pack(sequences_of([(2, [2]), (8, [10])]), 16, 2)


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 16, 2) == ([], [])
    assert padding_waste([]) == 0.0


def test_waste_is_the_share_of_empty_places() -> None:
    microbatches, _ = pack(sequences_of([(3, [8]), (2, [5]), (4, [5])]), 16, 2)
    assert len(microbatches) == 1
    assert padding_waste(microbatches) == pytest.approx(1 - (10 + 6 + 8) / 32)
    assert isinstance(microbatches[0], Microbatch)
