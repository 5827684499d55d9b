"""Rows survive: many threads, a torn last line, a full disk; broken lines elsewhere are named."""

import errno
import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import RunFailed
from slipstream.telemetry import atomic
from slipstream.telemetry.jsonl import JsonlWriter, encode_row, read_jsonl

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def write(path: Path, *rows: dict) -> None:
    writer = JsonlWriter(path)
    for row in rows:
        writer.write(row)
    writer.close()


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_row_is_one_line_and_comes_back_equal(row: dict) -> None:
    line = encode_row(row)
    assert line.count(b"\n") == 1
    assert json.loads(line) == row


def test_numpy_values_become_plain_and_non_finite_ones_null(tmp_path: Path) -> None:
    row = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.array([1.0, np.nan]), "e": math.inf, "f": (1, -math.inf)}
    write(tmp_path / "rows.jsonl", row)
    assert read_jsonl(tmp_path / "rows.jsonl") == [{"a": 0.5, "b": 3, "c": True, "d": [1.0, None], "e": None, "f": [1, None]}]


def test_a_value_that_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError):
        encode_row({"a": object()})


def test_rows_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "rows.jsonl")
    threads = [threading.Thread(target=lambda k=k: [writer.write({"thread": k, "i": i}) for i in range(200)]) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    rows = read_jsonl(tmp_path / "rows.jsonl")
    assert len(rows) == 1600
    for k in range(8):
        assert [row["i"] for row in rows if row["thread"] == k] == list(range(200))


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("keep", range(1, 12))
def test_a_torn_last_line_is_left_out_and_cut_before_the_next_row(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"i":0}\n' + b'{"i":1,"x":3}\n'[:keep])
    assert read_jsonl(path) == [{"i": 0}]
    write(path, {"i": 2})
    assert read_jsonl(path) == [{"i": 0}, {"i": 2}]


def test_a_whole_last_row_without_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"i":0}\n{"i":1}')
    write(path, {"i": 2})
    assert [row["i"] for row in read_jsonl(path)] == [0, 1, 2]


def test_a_broken_line_elsewhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"i":0}\n{"i":\n{"i":2}\n')
    with pytest.raises(RunFailed, match=r"rows\.jsonl line 2"):
        read_jsonl(path)


def test_a_full_disk_is_said_in_words_and_leaves_whole_rows(tmp_path: Path) -> None:
    """A writer whose file fills up half way through a row cuts that half off, so that it can go on once there is space."""
    path = tmp_path / "rows.jsonl"
    writer = JsonlWriter(path)
    writer.write({"i": 0})
    real = writer._file
    writer._file = HalfFull(real)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RunFailed, match=r"no space left on device while writing .*rows\.jsonl; free space and go on with --resume"):
        writer.write({"i": 1})
    writer._file = real
    writer.write({"i": 2})
    writer.close()
    assert path.read_bytes() == b'{"i":0}\n{"i":2}\n'


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the system's device that is always full")
def test_the_systems_own_full_device_is_said_in_words() -> None:
    with pytest.raises(RunFailed, match="no space left on device while writing /dev/full"):
        write_to_full_device()


def write_to_full_device() -> None:
    path = Path("/dev/full")
    with atomic.disk_space_named(path), path.open("r+b", buffering=0) as file:
        file.write(b"x")


class HalfFull:
    """Takes three bytes, then has no space."""

    def __init__(self, file) -> None:
        self.file, self.taken = file, False

    def write(self, data) -> int:
        if self.taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken = True
        return self.file.write(data[:3])

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_a_failed_whole_file_write_leaves_the_old_content_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    atomic.atomic_write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(RunFailed, match=r"file\.txt"):
        atomic.atomic_write_text(path, "new")
    assert path.read_text() == "old"
    atomic.atomic_write_text(path, "view", durable=False)  # does not wait for the disk
    assert path.read_text() == "view"
    assert [item.name for item in tmp_path.iterdir()] == ["file.txt"]


def test_other_errors_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.atomic_write_text(tmp_path / "absent" / "file.txt", "x")


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, taken = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: taken.append(pipe.read_text()))
    reader.start()
    atomic.atomic_write_text(pipe, "page")
    reader.join()
    assert taken == ["page"]
    assert pipe.is_fifo()
