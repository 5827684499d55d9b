"""A patch makes exactly the new chunk; other bytes are refused or fail the chunk's hash, and never touch anything else."""

import contextlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.weights.patches import PatchError, apply_patch, encode_patch

WORDS = st.sampled_from([1, 2, 4])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """Word bytes, a base, and what became of it."""
    word_bytes = draw(WORDS)
    base = bytearray(draw(st.binary(max_size=40)) * draw(st.integers(1, 20)))
    base = base[: len(base) // word_bytes * word_bytes]
    new = bytearray(base)
    for place in draw(st.lists(st.integers(0, max(0, len(base) - 1)), max_size=6)) if base else []:
        new[place] = draw(st.integers(0, 255))
    return word_bytes, bytes(base), bytes(new)


def patched(patch: bytes, base: bytes, word_bytes: int) -> bytes:
    """The result, in the middle of memory that must stay as it is."""
    room = bytearray(b"\xa5" * (len(base) + 128))
    try:
        apply_patch(patch, memoryview(base), word_bytes, memoryview(room)[64 : 64 + len(base)])
    finally:
        assert room[:64] == room[64 + len(base) :] == b"\xa5" * 64
    return bytes(room[64 : 64 + len(base)])


@given(pairs())
def test_it_makes_the_new_chunk_to_the_bit(pair: tuple[int, bytes, bytes]) -> None:
    word_bytes, base, new = pair
    assert patched(encode_patch(memoryview(new), memoryview(base), word_bytes), base, word_bytes) == new


@given(pairs(), st.data())
def test_damaged_patches_raise_one_error_or_make_a_chunk_of_the_same_size(pair: tuple[int, bytes, bytes], data: st.DataObject) -> None:
    word_bytes, base, new = pair
    patch = bytearray(encode_patch(memoryview(new), memoryview(base), word_bytes))
    place = data.draw(st.integers(0, len(patch) - 1))
    patch[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PatchError):
        patched(bytes(patch[: data.draw(st.integers(0, len(patch)))]), base, word_bytes)
    with contextlib.suppress(PatchError):
        patched(bytes(patch), base, word_bytes)


def test_a_patch_for_another_size_is_refused() -> None:
    base = bytes(range(64))
    patch = encode_patch(memoryview(base[::-1]), memoryview(base), 2)
    with pytest.raises(PatchError, match="32 words to a chunk of 16"):
        patched(patch, base[:32], 2)
    with pytest.raises(PatchError, match="from a base of 32 bytes to a chunk of 64"):
        apply_patch(patch, memoryview(base)[:32], 2, memoryview(bytearray(64)))


def test_an_update_at_a_small_rate_is_twenty_times_smaller() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(0, 0.04, 1 << 20).astype(np.float32)
    after = before + (1e-6 * np.clip(rng.normal(0, 0.5, before.size), -1, 1)).astype(np.float32)
    old, new = (array.astype(ml_dtypes.bfloat16).view(np.uint8) for array in (before, after))
    patch = encode_patch(new.data, old.data, 2)
    assert len(patch) * 20 < old.nbytes
    assert patched(patch, old.tobytes(), 2) == new.tobytes()
