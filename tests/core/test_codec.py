"""The journal's byte form of a rollout: exact round trip for anything a rollout may hold, refusal of anything else, and speed."""

import dataclasses
import struct
import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.codec import CodecError, rollout_from_bytes, rollout_to_bytes
from slipstream.core.records import FinishReason, Outcome, OutcomeKind, Rollout

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32_BITS = st.integers(0, 2**32 - 1)  # any bit pattern: NaNs with payload, infinities, negative zero
SECONDS = st.floats(0, 1e7)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    kind = draw(st.sampled_from(OutcomeKind))
    judged = kind not in (OutcomeKind.TIMEOUT, OutcomeKind.INFRASTRUCTURE)
    number = st.floats(allow_nan=False, allow_infinity=False)
    reward = draw(number if kind is not OutcomeKind.UNPARSEABLE else st.none() | number) if judged else None
    return Outcome(kind=kind, reward=reward, format_ok=draw(st.none() | st.booleans()), style=draw(st.text()), detail=draw(st.text()))


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    tokens = draw(st.integers(0, 20))

    def column(strategy: st.SearchStrategy[int], dtype: str, length: int) -> np.ndarray:
        return np.array(draw(st.lists(strategy, min_size=length, max_size=length)), dtype=dtype)

    text = st.text(st.characters(exclude_categories=[]))  # lone surrogates too: a byte-level decoder can produce anything
    return Rollout(
        **{name: draw(text) for name in ("run_id", "ticket_id", "prompt_id", "group_id", "prompt_text", "completion_text", "answer")},
        **{name: draw(text) for name in ("sampler_id", "sampler_class", "weight_digest")},
        **{name: draw(st.integers(0, 2**63)) for name in ("lineage", "ticket_index", "sample_index", "slot")},
        **{name: draw(SECONDS) for name in ("claimed_s", "started_s", "finished_s")},
        seed=draw(st.integers(0, 2**64 - 1)),
        prompt_ids=column(INT32, "<i4", draw(st.integers(0, 20))),
        completion_ids=column(INT32, "<i4", tokens),
        logprobs=column(FLOAT32_BITS, "<u4", tokens).view("<f4"),
        versions=column(INT32, "<i4", tokens),
        loss_mask=column(st.integers(0, 1), "<u1", tokens).astype(bool),
        finish_reason=draw(st.sampled_from(FinishReason)),
        outcome=draw(outcomes()),
    )


def example(tokens: int = 20) -> Rollout:
    """A rollout as a run makes them."""
    ids = np.arange(tokens, dtype=np.int32)
    return Rollout(
        run_id="0123456789ab",
        lineage=0,
        ticket_id="t00000007",
        ticket_index=7,
        prompt_id="sums/7/0",
        group_id="g00000007",
        sample_index=3,
        seed=2**63 + 5,
        prompt_ids=ids[:8],
        completion_ids=ids,
        logprobs=-ids.astype(np.float32) / 7,
        versions=ids // 9,
        loss_mask=np.ones(tokens, bool),
        finish_reason=FinishReason.STOP,
        outcome=Outcome(kind=OutcomeKind.VALUE, reward=1.0, format_ok=True, style="worked", detail="42 = 42"),
        prompt_text="12+30=",
        completion_text="12+30=42.",
        answer="42",
        sampler_id="sampler-0",
        sampler_class="cpu/float32",
        weight_digest="",
        slot=5,
        claimed_s=0.5,
        started_s=1.25,
        finished_s=1.5,
    )


def assert_equal(left: Rollout, right: Rollout) -> None:
    """Equal to the bit, types included (NaN payloads and negative zeros too)."""
    for field in dataclasses.fields(Rollout):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name
        else:
            assert (type(a), a) == (type(b), b), field.name


@given(rollouts())
def test_every_rollout_comes_back_to_the_bit(rollout: Rollout) -> None:
    assert_equal(rollout_from_bytes(rollout_to_bytes(rollout)), rollout)


def test_the_same_rollout_gives_the_same_bytes() -> None:
    assert rollout_to_bytes(example()) == rollout_to_bytes(example())


def test_arrays_read_back_cannot_be_written_to() -> None:
    back = rollout_from_bytes(rollout_to_bytes(example()))
    with pytest.raises(ValueError, match="read-only"):
        back.versions[0] = 9


@given(st.integers(0, 400))
def test_any_cut_is_refused(cut: int) -> None:
    data = rollout_to_bytes(example())
    with pytest.raises(CodecError):
        rollout_from_bytes(data[: min(cut, len(data) - 1)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"PK\x03\x04" + data[4:], "starts with"),
        (lambda data: data[:4] + struct.pack("<H", 9) + data[6:], "format 9"),
        (lambda data: data + b"\0", "its header says"),
        (lambda data: data.replace(b'"stop"', b'"halt"'), "broken head"),
        (lambda data: data.replace(b"[[", b"{["), "broken head"),
    ],
)
def test_anything_else_is_refused_in_words(change, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        rollout_from_bytes(change(rollout_to_bytes(example())))


def test_wrong_array_types_are_refused_rather_than_converted() -> None:
    rollout = dataclasses.replace(example(), logprobs=np.zeros(20, np.float64))
    with pytest.raises(CodecError, match="logprobs is float64"):
        rollout_to_bytes(rollout)


def test_a_short_rollout_takes_tens_of_microseconds() -> None:
    rollout = example()
    data = rollout_to_bytes(rollout)
    there = min(timeit.repeat(lambda: rollout_to_bytes(rollout), number=200, repeat=5)) / 200
    back = min(timeit.repeat(lambda: rollout_from_bytes(data), number=200, repeat=5)) / 200
    assert max(there, back) < 200e-6, f"there {there * 1e6:.0f} us, back {back * 1e6:.0f} us"  # measured: about 15 us each
