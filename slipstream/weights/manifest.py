"""What a published version consists of: every tensor with the hashes of its chunks. Pure; called by publishers and fetchers.

A manifest names bytes by their hash and holds none. It comes over the network, so `decode_manifest` believes nothing: sizes, shapes,
hashes and digest must agree with each other before anything is allocated.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.core.errors import SlipstreamError
from slipstream.weights.digest import CHUNK_BYTES, table_digest

FORMAT = 1
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1, "int32": 4}  # name -> bytes an item
MAX_MANIFEST_BYTES = 64 << 20
MAX_VERSION_BYTES = 4 << 40

_HASH = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_MAX_NAME, _MAX_AXES = 200, 8
_MAX_COUNT = 2**53  # whole numbers that every reader of JSON keeps

Value = TypeVar("Value")


class ManifestError(SlipstreamError):
    """The bytes are no manifest, or one that contradicts itself. Names the field, its value and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A chunk may be had as its difference from another; see `patches`."""

    base: str  # hash of that other chunk, of equal bytes
    bytes: int  # of the patch, compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some bytes of a tensor in a row."""

    hash: str
    bytes: int
    patch: Patch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An array, row-major and little-endian, in chunks of CHUNK_BYTES from its start."""

    name: str  # place in the tree of weights, e.g. "layers.q"
    shape: tuple[int, ...]
    dtype: str  # of DTYPES
    chunks: tuple[Chunk, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]

    @property
    def hashes(self) -> tuple[str, ...]:
        return tuple(chunk.hash for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An immutable version. Lineage and version say which; the digest says what."""

    lineage: int
    version: int
    tensors: tuple[Tensor, ...]
    scalars: tuple[tuple[str, float], ...] = ()  # by name: numbers of the tree that are no arrays, such as an adapter's scale
    digest: str

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


def manifest_of(lineage: int, version: int, tensors: tuple[Tensor, ...], scalars: tuple[tuple[str, float], ...] = ()) -> Manifest:
    """The manifest of these tensors, with its digest."""
    return Manifest(lineage=lineage, version=version, tensors=tensors, scalars=scalars, digest=_digest(tensors, scalars))


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON; `decode_manifest` gives back an equal one."""
    tensors = [
        {"name": one.name, "shape": one.shape, "dtype": one.dtype, "chunks": [_chunk_row(chunk) for chunk in one.chunks]}
        for one in manifest.tensors
    ]
    head = {"format": FORMAT, "lineage": manifest.lineage, "version": manifest.version, "digest": manifest.digest}
    return json.dumps(head | {"scalars": dict(manifest.scalars), "tensors": tensors}, separators=(",", ":")).encode()


def decode_manifest(data: bytes, *, max_bytes: int = MAX_VERSION_BYTES) -> Manifest:
    """The manifest in `data`; its tensors have at most `max_bytes` together. Raises ManifestError on anything else."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"manifest of {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are read")
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"manifest is not JSON: {error}") from error
    _exact(row, "manifest", {"format", "lineage", "version", "digest", "scalars", "tensors"})
    if row["format"] != FORMAT:
        raise ManifestError(f"manifest format = {row['format']!r}: this program reads format {FORMAT}")
    tensors = tuple(_tensor(one, f"tensors[{index}]") for index, one in enumerate(_list(row["tensors"], "tensors")))
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        raise ManifestError(f"manifest tensors: {next(name for name in names if names.count(name) > 1)} is there twice")
    manifest = Manifest(
        lineage=_whole(row["lineage"], "lineage"),
        version=_whole(row["version"], "version"),
        tensors=tensors,
        scalars=_scalars(row["scalars"]),
        digest=_text(row["digest"], "digest", _DIGEST, "16 hexadecimal digits"),
    )
    if manifest.bytes > max_bytes:
        raise ManifestError(f"manifest tensors have {manifest.bytes} bytes; at most {max_bytes} are taken")
    found = _digest(manifest.tensors, manifest.scalars)
    if found != manifest.digest:
        raise ManifestError(f"manifest digest = {manifest.digest!r}: its own tensors have digest {found}")
    return manifest


def _digest(tensors: tuple[Tensor, ...], scalars: tuple[tuple[str, float], ...]) -> str:
    return table_digest(((one.name, one.shape, one.dtype, one.hashes) for one in tensors), dict(scalars))


def _chunk_row(chunk: Chunk) -> list[Any]:
    return [chunk.hash, chunk.bytes, *([chunk.patch.base, chunk.patch.bytes] if chunk.patch else [])]


def _tensor(row: Any, field: str) -> Tensor:
    _exact(row, field, {"name", "shape", "dtype", "chunks"})
    name = _text(row["name"], f"{field}.name", _NAME, "letters, digits and underscores between dots")
    shape = tuple(_whole(size, f"{field}.shape") for size in _list(row["shape"], f"{field}.shape"))
    if len(name) > _MAX_NAME or len(shape) > _MAX_AXES:
        raise ManifestError(f"manifest {field} {name[:_MAX_NAME]}: at most {_MAX_NAME} letters and {_MAX_AXES} axes")
    if not isinstance(row["dtype"], str) or row["dtype"] not in DTYPES:
        raise ManifestError(f"manifest {field}.dtype = {row['dtype']!r}: one of {', '.join(DTYPES)} expected")
    chunks = tuple(_chunk(one, f"{field}.chunks") for one in _list(row["chunks"], f"{field}.chunks"))
    tensor = Tensor(name=name, shape=shape, dtype=row["dtype"], chunks=chunks)
    left = tensor.bytes
    if len(chunks) != -(-left // CHUNK_BYTES):
        raise ManifestError(f"manifest {field}.chunks: {len(chunks)} for {left} bytes; {-(-left // CHUNK_BYTES)} expected")
    for index, chunk in enumerate(chunks):
        expected = min(CHUNK_BYTES, left - index * CHUNK_BYTES)
        if chunk.bytes != expected:
            raise ManifestError(f"manifest {field}.chunks[{index}] has {chunk.bytes} bytes; {expected} expected")
    return tensor


def _chunk(row: Any, field: str) -> Chunk:
    if not isinstance(row, list) or len(row) not in (2, 4):
        raise ManifestError(f"manifest {field}: {row!r:.80} is not [hash, bytes] or [hash, bytes, base, bytes]")
    found, size = _text(row[0], field, _HASH, "64 hexadecimal digits"), _whole(row[1], field)
    if len(row) == 2:
        return Chunk(hash=found, bytes=size)
    patch = Patch(base=_text(row[2], field, _HASH, "64 hexadecimal digits"), bytes=_whole(row[3], field))
    if patch.bytes >= size:
        raise ManifestError(f"manifest {field}: a patch of {patch.bytes} bytes for {size}; fewer expected")
    return Chunk(hash=found, bytes=size, patch=patch)


def _scalars(value: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise ManifestError(f"manifest scalars = {value!r:.80}: an object expected")
    for name, number in value.items():
        _text(name, "scalars", _NAME, "letters, digits and underscores between dots")
        if not isinstance(number, float) or not math.isfinite(number):
            raise ManifestError(f"manifest scalars.{name} = {number!r:.80}: a finite number with a decimal point expected")
    return tuple(value.items())


def _exact(value: Any, field: str, keys: set[str]) -> None:
    if not isinstance(value, dict) or set(value) != keys:
        raise ManifestError(f"manifest {field} = {value!r:.80}: an object with {', '.join(sorted(keys))} expected")


def _list(value: Any, field: str) -> list[Any]:
    return _checked(value, field, lambda: isinstance(value, list), "a list")


def _whole(value: Any, field: str) -> int:
    return _checked(value, field, lambda: type(value) is int and 0 <= value <= _MAX_COUNT, f"a whole number from 0 to {_MAX_COUNT}")


def _text(value: Any, field: str, pattern: re.Pattern[str], expected: str) -> str:
    return _checked(value, field, lambda: isinstance(value, str) and pattern.fullmatch(value) is not None, expected)


def _checked(value: Value, field: str, holds: Callable[[], bool], expected: str) -> Value:
    if not holds():
        raise ManifestError(f"manifest {field} = {value!r:.80}: {expected} expected")
    return value
