"""Every family round-trips through files bit for bit, in one file and in shards, whole and in the parts of a mesh, in bounded memory."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import safe_open
from safetensors.numpy import load_file

from slipstream.core.errors import RunFailed
from slipstream.models.parameters import Params, declarations, initialise, leaf
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.weights.files import read_params, write_model
from slipstream.weights.hf_config import read_spec
from slipstream.weights.tensor_files import Tensors
from tests.goldens.read import FAMILIES, tensors, weights, write_directory
from tests.weights.models import SPECIAL, TINY

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def assert_equal(left: Params, right: Params) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def stored(directory: Path) -> dict[str, np.ndarray]:
    """All tensors of all files, each once."""
    found: dict[str, np.ndarray] = {}
    for path in directory.glob("*.safetensors"):
        part = load_file(path)
        assert not part.keys() & found.keys()
        found |= part
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shard_bytes", [10**9, 10_000], ids=["one file", "shards"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saved_is_written_back_bit_for_bit(tmp_path: Path, family: str, dtype: str, shard_bytes: int) -> None:
    write_directory(family, tmp_path / "read")
    spec = read_spec(tmp_path / "read")
    params = read_params(tmp_path / "read", spec, DTYPES[dtype])
    write_model(tmp_path / "written", spec, params, special=SPECIAL, dtype=dtype, max_shard_bytes=shard_bytes)
    found, wanted = stored(tmp_path / "written"), weights(family)
    assert {name: tensor.shape for name, tensor in found.items()} == tensors(family)
    for name, tensor in wanted.items():  # golden weights are exact in bfloat16
        assert found[name].dtype == np.dtype(DTYPES[dtype])
        np.testing.assert_array_equal(found[name].astype(np.float32), tensor, err_msg=name)
    assert read_spec(tmp_path / "written") == spec
    assert_equal(read_params(tmp_path / "written", spec, DTYPES[dtype]), params)


def test_shards_have_an_index_with_the_total_and_keep_their_limit(tmp_path: Path) -> None:
    write_model(tmp_path, TINY, initialise(TINY, 1), special=SPECIAL, max_shard_bytes=4000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in stored(tmp_path).values())
    for path in tmp_path.glob("*.safetensors"):
        part = load_file(path)
        assert sum(tensor.nbytes for tensor in part.values()) <= 4000
        assert {name for name, file in index["weight_map"].items() if file == path.name} == part.keys()
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(("first", "second"), [(4000, 10**9), (10**9, 4000), (2000, 4000)])
def test_nothing_of_an_overwritten_model_is_left(tmp_path: Path, first: int, second: int) -> None:
    bigger = replace(TINY, layers=5)
    write_model(tmp_path, bigger, initialise(bigger, 1), special=SPECIAL, max_shard_bytes=first)
    params = initialise(TINY, 2)
    write_model(tmp_path, TINY, params, special=SPECIAL, max_shard_bytes=second)
    assert_equal(read_params(tmp_path, read_spec(tmp_path)), params)
    assert len(stored(tmp_path)) == 29
    assert (tmp_path / "model.safetensors.index.json").exists() == (second == 4000)
    assert not list(tmp_path.glob(".*"))


def test_a_write_that_fails_leaves_the_model_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = initialise(TINY, 1)
    write_model(tmp_path, TINY, params, special=SPECIAL)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slipstream.weights.safetensors_writer.os.fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        write_model(tmp_path, TINY, initialise(TINY, 2), special=SPECIAL, max_shard_bytes=4000)
    assert_equal(read_params(tmp_path, read_spec(tmp_path)), params)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]


WIDE = ModelSpec(
    vocab=512,
    d_model=128,
    layers=16,
    heads=4,
    kv_heads=4,
    head_dim=32,
    d_ff=256,
    rope=RopeSpec(theta=1e4),
    norm_eps=1e-5,
    tied=True,
    context=32,
)
LEAF = 4 * WIDE.layers * WIDE.d_model * WIDE.d_ff  # bytes of the largest stacked leaf
TENSOR = 4 * WIDE.vocab * WIDE.d_model  # bytes of the largest tensor in files
SMALL = 200_000  # names, headers, declarations


def peak_of(work) -> int:
    """Most bytes of Python and numpy at once while `work` runs, once it has run; arrays on the device do not count."""
    work()  # jax compiles its copies
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reading_holds_one_leaf_and_writing_one_tensor(tmp_path: Path) -> None:
    params = initialise(WIDE, 1)
    total = sum(array.nbytes for array in jax.tree.leaves(params))
    write = lambda: write_model(tmp_path, WIDE, params, special=SPECIAL, max_shard_bytes=1_000_000)  # noqa: E731
    assert peak_of(write) < 2.1 * TENSOR + SMALL < total / 10
    assert peak_of(lambda: read_params(tmp_path, WIDE)) < LEAF + TENSOR + SMALL < total / 4
    assert peak_of(lambda: read_params(tmp_path, WIDE, jnp.bfloat16)) < LEAF / 2 + 2 * TENSOR + SMALL


MESHES = {
    "model": lambda item: [{"heads": "x", "kv_heads": "x", "mlp": "y", "vocab": "x", "expert": "x"}.get(axis) for axis in item.axes],
    "embed": lambda item: ["y" if axis == "embed" else None for axis in item.axes],
    "layers": lambda item: ["x" if axis == "layer" else None for axis in item.axes],
    "width": lambda item: [{"head_dim": "y", "expert_mlp": "x"}.get(axis) for axis in item.axes],
    "nothing": lambda item: [],
}


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices; tests/weights/test_placed.py starts a process that has them")
@pytest.mark.parametrize("family", ["llama_tied", "qwen2", "qwen3_moe", "gemma2"])
@pytest.mark.parametrize("kind", MESHES)
def test_parts_for_a_mesh_are_those_of_the_whole(tmp_path: Path, family: str, kind: str) -> None:
    write_directory(family, tmp_path)
    spec = read_spec(tmp_path)
    mesh = jax.make_mesh((2, 2), ("x", "y"))
    shardings = {}
    for item in declarations(spec):
        axes = [name if name and size % 2 == 0 else None for name, size in zip(MESHES[kind](item), item.shape(spec), strict=False)]
        shardings[item.path] = NamedSharding(mesh, PartitionSpec(*axes))
    placed, whole = read_params(tmp_path, spec, shardings=shardings), read_params(tmp_path, spec)
    assert_equal(placed, whole)
    for path, sharding in shardings.items():
        assert leaf(placed, path).sharding.is_equivalent_to(sharding, leaf(placed, path).ndim)


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices; tests/weights/test_placed.py starts a process that has them")
def test_only_needed_parts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices hold half of the rows each: every element is read once, and no tensor whole."""
    write_directory("qwen3_moe", tmp_path)
    spec = read_spec(tmp_path)
    read: dict[str, int] = {}
    largest = 0

    def counted(self: Tensors, name: str, part: tuple[slice, ...]) -> np.ndarray:
        nonlocal largest
        found = original(self, name, part)
        read[name] = read.get(name, 0) + found.size
        largest = max(largest, found.size)
        return found

    original = Tensors.read_part
    monkeypatch.setattr(Tensors, "read_part", counted)
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    rows = {("layers", "gate"): "expert_mlp", ("layers", "q"): "heads", ("embed",): "vocab"}
    shardings = {
        item.path: NamedSharding(mesh, PartitionSpec(*("x" if axis == rows[item.path] else None for axis in item.axes)))
        for item in declarations(spec)
        if item.path in rows
    }
    read_params(tmp_path, spec, shardings=shardings)
    wanted = {name: tensor for name, tensor in tensors("qwen3_moe").items() if "gate_proj" in name or "q_proj" in name or "embed" in name}
    assert read == {name: shape[0] * shape[1] for name, shape in wanted.items()}
    assert largest == max(shape[0] * shape[1] for shape in wanted.values()) // 2


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices; tests/weights/test_placed.py starts a process that has them")
def test_a_sharded_read_of_a_replicated_leaf_reads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_directory("llama_tied", tmp_path)
    spec = read_spec(tmp_path)
    names: list[str] = []
    original = Tensors.read
    monkeypatch.setattr(Tensors, "read", lambda self, name: (names.append(name), original(self, name))[1])
    mesh = jax.make_mesh((2, 2), ("x", "y"))
    shardings = {item.path: NamedSharding(mesh, PartitionSpec("x" if item.axes[0] == "layer" else None)) for item in declarations(spec)}
    read_params(tmp_path, spec, shardings=shardings)
    assert sorted(names) == sorted(tensors("llama_tied"))
