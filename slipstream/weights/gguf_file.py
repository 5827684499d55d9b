"""Opens a GGUF file with the package's reader, after a walk over the header that trusts none of its lengths.

The package takes every length as it stands: a damaged one makes it count to 2^60 or show less than it was asked for. So each
is first held against the size of the file. The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type of a value -> bytes
_STRING, _ARRAY = 8, 9
_MOST_NESTED = 3  # arrays in arrays; no known key has any
_MOST_AXES = 4
_DAMAGE = (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError)  # what the reader does with a damaged file


def open_gguf(source: Path) -> Any:
    """The package's reader over a whole file. Raises UsageError when the package or the file is absent, or the file is damaged."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UsageError("reading GGUF files needs the package gguf; pip install 'slipstream[gguf]'") from None
    if not source.is_file():
        raise UsageError(f"GGUF file {source} does not exist")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{source} is not a GGUF file: it does not begin with the letters GGUF")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _Walk(data).check()
            reader = GGUFReader(source)
        except _DAMAGE as error:
            raise UsageError(f"{source} is damaged or cut off ({error}); fetch it again") from error
    end = max((tensor.data_offset + tensor.n_bytes for tensor in reader.tensors), default=0)
    if end > source.stat().st_size:
        raise UsageError(f"{source} is cut off: its tensors end at byte {end:,}, the file at {source.stat().st_size:,}; fetch it again")
    return reader


class _Walk:
    """One pass over the header; ValueError at the first length that cannot be."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._place = data, 4

    def check(self) -> None:
        version = self._number("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version}; only 2 and 3, little-endian, can be read")
        tensors, keys = self._number("<Q"), self._number("<Q")
        for _ in range(keys):
            self._string()
            self._value(self._number("<I"))
        places = sorted(self._tensor() for _ in range(tensors))
        if any(start < end for (_, end), (start, _) in pairwise(places)):
            raise ValueError("two tensors overlap")

    def _tensor(self) -> tuple[int, int]:
        """Where the tensor's data begins and ends, counted from where the data of all begin."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        self._string()
        axes = self._number("<I")
        if axes > _MOST_AXES:
            raise ValueError(f"a tensor with {axes} axes")
        elements = math.prod(self._number("<Q") for _ in range(axes))
        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self._number("<I"))]
        start = self._number("<Q")
        end = start + elements // per_block * block_bytes
        if self._place + end > len(self._data):
            raise ValueError("a tensor reaches past the end")
        return start, end

    def _value(self, kind: int, nested: int = 0) -> None:
        if kind in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self._string()
        elif kind == _ARRAY and nested < _MOST_NESTED:
            inner, length = self._number("<I"), self._number("<Q")
            if inner in _SCALAR_BYTES:
                self._skip(_SCALAR_BYTES[inner] * length)
                return
            for _ in range(length):  # each takes bytes, so the end of the file ends this too
                self._value(inner, nested + 1)
        else:
            raise ValueError(f"a value of unknown type {kind}")

    def _string(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        place = self._place
        self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._data, place)[0]

    def _skip(self, length: int) -> None:
        self._place += length
        if self._place > len(self._data):
            raise ValueError(f"something reaches to byte {self._place:,}, the file ends at {len(self._data):,}")
