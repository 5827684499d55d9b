"""A GGUF file cut off or changed anywhere: UsageError in no time, never a traceback and never a count to 2^60."""

import struct
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import UsageError
from slipstream.weights.gguf import import_gguf
from tests.weights.tiny_gguf import random_tensors, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("whole") / "a.gguf", random_tensors()).read_bytes()


def header_bytes(content: bytes) -> int:
    """Where the last tensor's entry ends, roughly: behind its name."""
    return content.rindex(b"blk.1") + 60


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_cut_off_anywhere_it_is_refused(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from([40, header_bytes(whole), len(whole) - 100]))  # padding of up to 31 bytes may be missing
    folder = tmp_path_factory.mktemp("cut")
    (folder / "a.gguf").write_bytes(whole[: data.draw(st.integers(4, limit))])
    with pytest.raises(UsageError, match=r"damaged|cut off"):
        import_gguf(folder / "a.gguf", folder / "out")
    assert not (folder / "out").exists()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_anywhere_in_its_header_it_is_refused_or_read(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Some changes are no damage to be seen (a letter of the model's name); none may end in anything but these two."""
    place = data.draw(st.integers(4, header_bytes(whole) - 1))
    value = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    folder = tmp_path_factory.mktemp("changed")
    (folder / "a.gguf").write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
    try:
        import_gguf(folder / "a.gguf", folder / "out")
    except UsageError:
        assert not (folder / "out").exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_with_any_eight_bytes_turned_huge_it_is_refused_or_read(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = data.draw(st.integers(4, header_bytes(whole) - 8))
    folder = tmp_path_factory.mktemp("huge")
    (folder / "a.gguf").write_bytes(whole[:place] + struct.pack("<Q", 2**60 + place) + whole[place + 8 :])
    try:
        import_gguf(folder / "a.gguf", folder / "out")
    except UsageError:
        assert not (folder / "out").exists()


def test_overlapping_tensors_are_named(whole: bytes, tmp_path: Path) -> None:
    last = header_bytes(whole)
    entry = whole.rindex(b"ffn_down.weight", 0, last) + len(b"ffn_down.weight") + 4 + 2 * 8 + 4  # axes, lengths, type; then the place
    (tmp_path / "a.gguf").write_bytes(whole[:entry] + struct.pack("<Q", 0) + whole[entry + 8 :])
    with pytest.raises(UsageError, match="two tensors overlap"):
        import_gguf(tmp_path / "a.gguf", tmp_path / "out")


def test_a_big_endian_file_is_named(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(whole[:4] + struct.pack(">I", 3) + whole[8:])
    with pytest.raises(UsageError, match="only 2 and 3, little-endian"):
        import_gguf(tmp_path / "a.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tokenizer.ggml.eos_token_id", 99_999, "is not one of its"),
        ("tokenizer.ggml.eos_token_id", "x", "is not one of its"),
        ("tokenizer.ggml.tokens", "x", "is not a list of str"),
        ("tokenizer.ggml.token_type", "x", "is not a list of int"),
        ("tokenizer.chat_template", 5, "is not a text"),
        ("llama.rope.freq_base", "x", "must be a number above 0"),
        ("llama.rope.freq_base", float("nan"), "must be a number above 0"),
        ("llama.block_count", 1.5, "must be a whole number above 0"),
        ("llama.block_count", 2**31, "tensors expected for"),
    ],
)
def test_values_of_the_wrong_kind_are_named(tmp_path: Path, name: str, value: object, words: str) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(name)
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(name, value)

    with pytest.raises(UsageError) as caught:
        import_gguf(write_gguf(tmp_path / "a.gguf", random_tensors(), more=change), tmp_path / "out")
    assert words in str(caught.value)
