"""Admission: every request is placed once, every prompt computed once, and padding never lands on a live slot."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.records import SampleRequest
from slipstream.engine.admission import SHORTEST_BUCKET, bucket, plan_prefill
from tests.engine.small import request


@given(st.integers(1, 100_000))
def test_a_bucket_is_the_smallest_doubling_of_the_shortest_that_holds_the_prompt(tokens: int) -> None:
    length = bucket(tokens)
    assert length >= tokens
    assert (length // SHORTEST_BUCKET) * SHORTEST_BUCKET == length
    assert (length // SHORTEST_BUCKET).bit_count() == 1
    assert length == SHORTEST_BUCKET or length // 2 < tokens


@st.composite
def admissions(draw: st.DrawFn) -> tuple[list[tuple[int, SampleRequest]], int, int]:
    slot_count = draw(st.integers(1, 24))
    slots = draw(st.lists(st.integers(0, slot_count - 1), unique=True, min_size=1, max_size=slot_count))
    prompts = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=6))
    chosen = [draw(st.sampled_from(prompts)) for _ in slots]
    return [(slot, request(f"s{slot}", ids)) for slot, ids in zip(slots, chosen, strict=True)], slot_count, draw(st.integers(1, 5))


@settings(deadline=None)
@given(admissions())
def test_plans(drawn: tuple[list[tuple[int, SampleRequest]], int, int]) -> None:
    admitted, slot_count, per_call = drawn
    calls = plan_prefill(admitted, slot_count, per_call)
    placed: dict[int, list[int]] = {}
    computed: list[tuple[int, ...]] = []
    for call in calls:
        length = call.token_ids.shape[1]
        assert call.token_ids.shape[0] == per_call
        assert call.slots.shape == call.sources.shape == (slot_count,)
        assert {array.dtype for array in (call.token_ids, call.slots, call.sources)} == {np.dtype(np.int32)}
        used = call.slots < slot_count
        assert (call.slots[~used] == slot_count).all()  # beyond the last slot: dropped
        assert ((call.sources >= 0) & (call.sources < per_call)).all()
        for slot, source in zip(call.slots[used], call.sources[used], strict=True):
            assert int(slot) not in placed
            placed[int(slot)] = call.token_ids[source].tolist()
            assert len(placed[int(slot)]) == length
        rows = {int(source) for source in call.sources[used]}
        assert rows == set(range(len(rows)))
        computed += [tuple(call.token_ids[row]) for row in rows]
    assert len(computed) == len({one.prompt_ids.tobytes() for _, one in admitted})
    assert placed.keys() == {slot for slot, _ in admitted}
    for slot, one in admitted:
        tokens = len(one.prompt_ids)
        assert len(placed[slot]) == bucket(tokens)
        assert placed[slot][:tokens] == one.prompt_ids.tolist()
        assert not any(placed[slot][tokens:])
    lengths = [call.token_ids.shape[1] for call in calls]
    distinct = {
        length: len({one.prompt_ids.tobytes() for _, one in admitted if bucket(len(one.prompt_ids)) == length}) for length in lengths
    }
    assert all(lengths.count(length) == -(-count // per_call) for length, count in distinct.items())  # no call more than needed


def test_prompts_of_another_integer_width_are_told_apart() -> None:
    """64-bit [5] and 32-bit [5, 0] have the same bytes."""
    wide = replace(request("wide", [5]), prompt_ids=np.array([5], np.int64))
    narrow = request("narrow", [5, 0])
    (call,) = plan_prefill([(0, wide), (1, narrow)], 2, 4)
    assert call.sources[0] != call.sources[1]
