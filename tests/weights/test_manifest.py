"""A manifest survives the wire, and anything that is none is refused with one clear error, whatever bytes come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.weights.digest import CHUNK_BYTES, chunk_hash
from slipstream.weights.manifest import (
    DTYPES,
    Chunk,
    Manifest,
    ManifestError,
    Patch,
    Tensor,
    decode_manifest,
    encode_manifest,
    manifest_of,
)

HASHES = st.binary(max_size=4).map(chunk_hash)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | HASHES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Tensor:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 3000), max_size=3)))
    size = Tensor(name=name, shape=shape, dtype=dtype, chunks=()).bytes
    sizes = [min(CHUNK_BYTES, size - start) for start in range(0, min(size, 6 * CHUNK_BYTES), CHUNK_BYTES)]
    if size > 6 * CHUNK_BYTES:
        shape, sizes = (), [DTYPES[dtype]]
    patches = st.none() | st.builds(Patch, base=HASHES, bytes=st.just(0))
    chunks = tuple(Chunk(hash=draw(HASHES), bytes=one, patch=draw(patches)) for one in sizes)
    return Tensor(name=name, shape=shape, dtype=dtype, chunks=chunks)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(st.sampled_from(["embed", "layers.q", "a.b.c", "x_1"]), unique=True, max_size=3))
    scalars = draw(st.dictionaries(st.sampled_from(["s", "adapters.scale"]), st.floats(allow_nan=False, allow_infinity=False)))
    return manifest_of(
        draw(st.integers(0, 9)), draw(st.integers(0, 2**53)), tuple(draw(tensors(name)) for name in names), tuple(scalars.items())
    )


@given(manifests())
def test_a_manifest_comes_back_equal(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


@given(manifests(), st.data())
def test_a_changed_value_is_refused_or_says_the_same_tensors(manifest: Manifest, data: st.DataObject) -> None:
    row = json.loads(encode_manifest(manifest))
    node, key = data.draw(st.sampled_from(list(_places(row))))
    node[key] = data.draw(JSON)
    try:
        found = decode_manifest(json.dumps(row).encode())
    except ManifestError:
        return
    assert found.digest == manifest.digest
    assert [(one.name, one.shape, one.dtype, one.hashes) for one in found.tensors] == [
        (one.name, one.shape, one.dtype, one.hashes) for one in manifest.tensors
    ]


@given(st.binary(max_size=60) | st.text('[]{}",:0123456789', max_size=60).map(str.encode))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="manifest"):
        decode_manifest(data)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("tensors", 0, "shape", 0), 9, "1 for 36 bytes|has 32 bytes; 36 expected"),
        (("tensors", 0, "dtype"), "object", "dtype = 'object': one of float32"),
        (("tensors", 0, "chunks", 0, 0), "../secret", "64 hexadecimal digits expected"),
        (("tensors", 0, "name"), "../x", "name = '../x'"),
        (("tensors", 1, "name"), "embed", "embed is there twice"),
        (("digest",), "0" * 16, "its own tensors have digest"),
        (("version",), True, "version = True: a whole number"),
        (("format",), 2, "this program reads format 1"),
        (("scalars",), {"s": float("inf")}, "scalars.s = inf: a finite number"),
    ],
)
def test_the_error_names_field_value_and_what_was_expected(path: tuple[Any, ...], value: Any, words: str) -> None:
    chunk = Chunk(hash=chunk_hash(b""), bytes=32)
    pair = tuple(Tensor(name=name, shape=(8,), dtype="float32", chunks=(chunk,)) for name in ("embed", "head"))
    row = json.loads(encode_manifest(manifest_of(0, 1, pair)))
    node = row
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(ManifestError, match=words):
        decode_manifest(json.dumps(row).encode())


def test_a_version_larger_than_the_limit_is_refused_before_anything_is_allocated() -> None:
    chunk = Chunk(hash=chunk_hash(b""), bytes=32)
    data = encode_manifest(manifest_of(0, 1, (Tensor(name="embed", shape=(8,), dtype="float32", chunks=(chunk,)),)))
    decode_manifest(data, max_bytes=32)
    with pytest.raises(ManifestError, match="32 bytes; at most 31"):
        decode_manifest(data, max_bytes=31)
    with pytest.raises(ManifestError, match="not JSON"):
        decode_manifest(b"[" * 100_000)


def _places(row: Any) -> Any:
    """Every key of every list and object in it."""
    for key in list(row) if isinstance(row, dict) else range(len(row)):
        yield row, key
        if isinstance(row[key], list | dict):
            yield from _places(row[key])
