"""Packing places every sequence once, whole and alone but for a shared prompt, in shapes that are listed; unpacking finds it again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.records import TrainingSequence
from slipstream.train.blocks import blocks
from slipstream.train.cost import Cost, model_cost
from slipstream.train.packing import Microbatch, fill, pack, padding_waste, plan, unpack
from slipstream.train.shapes import Shapes, one_shape
from tests.models.families import golden_model
from tests.train.small import SPEC

LENGTHS = st.lists(st.integers(1, 16), max_size=30)
SHAPES = st.builds(
    lambda lengths, rows, halvings, devices, align, cost: Shapes(
        row_lengths=tuple(length * 4 for length in sorted({*lengths, 4 * align})),
        tokens=rows * 16 * align,
        halvings=halvings,
        devices=devices,
        align=align,
        cost=cost,
    ),
    st.lists(st.integers(1, 6).map(lambda length: 4 * length), max_size=2),
    st.integers(1, 8),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from([1, 4]),
    st.sampled_from([Cost(), Cost(quadratic=0.1), Cost(quadratic=0.1, whole_rows=True)]),
)
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


@given(LENGTHS, st.integers(16, 40))
def test_rows_hold_every_size_once_and_are_not_opened_in_vain(sizes: list[int], row_tokens: int) -> None:
    rows = fill(sizes, [row_tokens] * len(sizes))
    assert sorted(index for _, members in rows for index in members) == list(range(len(sizes)))
    filled = sorted(sum(sizes[index] for index in members) for _, members in rows)
    assert all(tokens == row_tokens for tokens, _ in rows)
    assert max(filled, default=0) <= row_tokens
    assert len(filled) < 2 or filled[0] + filled[1] > row_tokens  # two rows are never opened where one would do


@given(GROUPS, SHAPES)
def test_a_plan_keeps_to_the_listed_shapes_and_budgets(groups: list[tuple[int, list[int]]], shapes: Shapes) -> None:
    sequences = sequences_of(groups)
    found = plan(sequences, shapes)
    assert plan(sequences_of(groups), shapes) == found
    assert sorted(index for block in found.blocks for index in block.members) == list(range(len(sequences)))
    rows = [row for microbatch in found.microbatches for row in microbatch if row]
    assert sorted(index for row in rows for index in row.blocks) == list(range(len(found.blocks)))
    for row in rows:
        assert sum(found.blocks[index].positions for index in row.blocks) <= row.tokens
    for microbatch in found.microbatches:
        (row_tokens,) = {row.tokens for row in microbatch if row}
        assert (len(microbatch), row_tokens) in shapes.programs()
        assert len(microbatch) * row_tokens <= max(shapes.tokens, shapes.devices * row_tokens)
        share = len(microbatch) // shapes.devices
        assert len(microbatch) == share * shapes.devices
        costs = [sum(row.cost for row in microbatch[first : first + share] if row) for first in range(0, len(microbatch), share)]
        widest = max(row.cost for row in microbatch if row)
        assert max(costs) - min(costs) <= widest * (1 + 1e-9)  # devices within one row of each other, but for the rounding of sums
    smallest = {row_tokens: shapes.heights(row_tokens)[-1] for row_tokens in shapes.row_lengths}
    for row_tokens in shapes.row_lengths:
        same = [microbatch for microbatch in found.microbatches if {row.tokens for row in microbatch if row} == {row_tokens}]
        assert not same or sum(row is None for microbatch in same for row in microbatch) < smallest[row_tokens]


def test_short_sequences_do_not_pay_for_the_longest() -> None:
    """One sequence of 200 and 64 of 24: where all pairs of a row are computed, the short ones get rows of 32 of their own."""
    sequences = sequences_of([(1, [200])] + [(1, [24])] * 64)
    shapes = Shapes(row_lengths=(32, 256), tokens=512, halvings=1, cost=Cost(quadratic=0.05, whole_rows=True))
    microbatches, _ = pack(sequences, shapes)
    assert {batch.token_ids.shape for batch in microbatches} <= {(1, 256), (16, 32), (8, 32)}
    assert [batch.token_ids.shape for batch in microbatches].count((1, 256)) == 1
    linear, _ = pack(sequences, Shapes(row_lengths=(32, 256), tokens=512, halvings=1))
    assert {batch.token_ids.shape[1] for batch in linear} == {256}  # by positions alone, long rows are filled best


def test_shapes_are_listed_and_covered() -> None:
    shapes = Shapes(row_lengths=(64, 128), tokens=2048, halvings=3, devices=4)
    assert shapes.programs() == [(32, 64), (16, 64), (8, 64), (4, 64), (16, 128), (8, 128), (4, 128)]  # devices share each evenly
    assert shapes.cover(44, 128) == [16, 16, 8, 4]
    assert [shapes.cover(rows, 64) for rows in (1, 32, 56, 61)] == [[4], [32], [32, 16, 8], [32, 32]]
    assert one_shape(128, 3).programs() == [(3, 128)]
    assert Shapes(row_lengths=(128,), tokens=384, halvings=2).programs() == [(3, 128)]  # three do not halve


def test_the_coefficients_are_the_models_operations() -> None:
    """Two a matrix entry met, the output matrix included; two products of heads x head_dim channels a pair and layer."""
    per_layer = 32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 40
    assert model_cost(SPEC, whole_rows=True) == Cost(linear=2 * (per_layer + 17 * 32), quadratic=4 * 32, whole_rows=True)
    experts, _ = golden_model("qwen3_moe")  # two of eight experts are visited
    assert experts.experts is not None
    dense = 2.0 * experts.layers * experts.experts.count * 3 * experts.d_model * experts.experts.d_ff
    assert model_cost(experts, whole_rows=False).linear < dense
    assert Cost(linear=2, quadratic=3).of_row(10, 7) == 41
    assert Cost(linear=2, quadratic=3, whole_rows=True).of_row(10, 7) == 320


@pytest.mark.parametrize("seed", range(3))
def test_waste_on_a_tenfold_spread_of_lengths_is_small_and_devices_are_even(seed: int) -> None:
    """256 samples from 100 to 1,000 tokens; page rounding in pages of 8 included."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(np.log(316), 0.55, 256)), 100, 1000).astype(int)
    sequences = sequences_of([(1, [int(length)]) for length in lengths])
    shapes = Shapes(row_lengths=(1024,), tokens=16 * 1024, halvings=2, devices=4, align=8, cost=Cost(linear=1.0, quadratic=1e-3))
    microbatches, _ = pack(sequences, shapes)
    assert padding_waste(microbatches) < 0.06
    by_device = [(batch.segment_ids > 0).reshape(4, -1).sum(axis=1) for batch in microbatches]
    assert sum(tokens.max() for tokens in by_device) < 1.06 * sum(tokens.mean() for tokens in by_device)


@given(GROUPS, st.integers(16, 40))
def test_blocks_hold_every_sequence_once_and_fit_a_row(groups: list[tuple[int, list[int]]], row_tokens: int) -> None:
    sequences = sequences_of(groups)
    found = blocks(sequences, one_shape(row_tokens, 1).row_length)
    assert sorted(index for block in found for index in block.members) == list(range(len(sequences)))
    for block in found:
        prompts = {int(sequences[index].loss_mask.argmax()) for index in block.members}
        own = [len(sequences[index].token_ids) - 1 - block.shared for index in block.members]
        assert block.positions == block.shared + sum(own) <= row_tokens
        assert block.shared in ({0} if len(block.members) == 1 else {prompts.pop() - 1})
        seen = [count + block.shared for one in own for count in range(1, one + 1)] + list(range(1, block.shared + 1))
        assert block.pairs == sum(seen)


@given(GROUPS, st.integers(16, 40), st.integers(1, 4))
def test_every_token_stands_where_its_past_can_be_seen(groups: list[tuple[int, list[int]]], row_tokens: int, rows: int) -> None:
    """For each trained token, the positions that its predictor may see are exactly the tokens before it, at their places."""
    sequences = sequences_of(groups)
    microbatches, placed = pack(sequences, one_shape(row_tokens, rows))
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
    microbatches, placed = pack(sequences, one_shape(row_tokens, rows))
    found = unpack([batch.targets.astype(np.float32) for batch in microbatches], sequences, placed)
    for values, sequence in zip(found, sequences, strict=True):
        np.testing.assert_array_equal(values[sequence.loss_mask], sequence.token_ids[sequence.loss_mask])
        assert values.shape == sequence.token_ids.shape


def test_a_group_computes_its_prompt_once() -> None:
    """A prompt of 5 and four completions of 3: 4 shared positions and 3 a branch, against 7 a sequence alone."""
    (block,) = blocks(sequences_of([(5, [3, 3, 3, 3])]), one_shape(32, 1).row_length)
    assert (block.shared, block.positions) == (4, 16)


def test_the_largest_goes_first_and_where_it_fills_most() -> None:
    assert fill([3, 9, 3, 7], [12] * 4) == [(12, (1, 0)), (12, (3, 2))]
    assert fill([4, 8, 5, 5], [8, 12, 8, 8]) == [(12, (1, 0)), (8, (2,)), (8, (3,))]


def test_too_long_is_said_with_the_setting_to_raise() -> None:
    with pytest.raises(ValueError, match=r"a sequence of 17 positions does not fit a row of 16; raise batch\.row_tokens"):
        pack(sequences_of([(2, [2]), (8, [10])]), one_shape(16, 2))


def test_nothing_packs_to_nothing() -> None:
    assert pack([], one_shape(16, 2)) == ([], [])
    assert padding_waste([]) == 0.0


def test_waste_is_the_share_of_empty_places() -> None:
    microbatches, _ = pack(sequences_of([(3, [8]), (2, [5]), (4, [5])]), one_shape(16, 2))
    assert len(microbatches) == 1
    assert padding_waste(microbatches) == pytest.approx(1 - (10 + 6 + 8) / 32)
    assert isinstance(microbatches[0], Microbatch)
    paged = Shapes(row_lengths=(16,), tokens=32, halvings=1, align=8)  # 10, 6 and 8 take 16, 8 and 8: one whole row and two halves
    assert padding_waste(pack(sequences_of([(3, [8]), (2, [5]), (4, [5])]), paged)[0]) == pytest.approx(1 - (10 + 6 + 8) / 32)
    uneven = [*pack(sequences_of([(1, [16])]), one_shape(16, 1))[0], *pack(sequences_of([(1, [16])]), one_shape(16, 3))[0]]
    assert padding_waste(uneven) == pytest.approx(0.5)  # by positions, not by microbatches
