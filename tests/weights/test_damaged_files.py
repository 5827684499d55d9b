"""Model directories that were cut off, mixed up or damaged: one UsageError that names the file, never a traceback, never other weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from slipstream.core.errors import UsageError
from slipstream.models.parameters import Params, initialise
from slipstream.weights.files import read_params, write_model
from slipstream.weights.hf_config import read_spec
from tests.weights.models import SPECIAL, TINY

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, LAST = "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"


def written(directory: Path, **more: Any) -> Params:
    params = initialise(TINY, seed=1)
    write_model(directory, TINY, params, special=SPECIAL, **more)
    return params


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    written(tmp_path, max_shard_bytes=4000)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Params, bytes]:
    directory = tmp_path_factory.mktemp("whole")
    return written(directory), (directory / SINGLE).read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_named(
    whole: tuple[Params, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    (directory / SINGLE).write_bytes(whole[1][: data.draw(st.integers(0, len(whole[1]) - 1))])
    with pytest.raises(UsageError, match=r"model\.safetensors is not a whole safetensors file"):
        read_params(directory, TINY)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_of_the_header_is_refused_or_harmless(
    whole: tuple[Params, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Harmless: in the note about the format. Everything else in a header is checked against something."""
    params, content = whole
    header = 8 + int.from_bytes(content[:8], "little")
    place, bit = data.draw(st.integers(0, header - 1)), data.draw(st.integers(0, 7))
    directory = tmp_path_factory.mktemp("flipped")
    (directory / SINGLE).write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
    try:
        found = read_params(directory, TINY)
    except UsageError:
        return
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_an_index_that_names_absent_files_is_refused(sharded: Path) -> None:
    (sharded / LAST).unlink()
    with pytest.raises(UsageError, match=rf"has no {LAST}"):
        read_params(sharded, TINY)


def changed_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    tree = json.loads((directory / INDEX).read_text())
    change(tree["weight_map"])
    (directory / INDEX).write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.update({"model.norm.weight": FIRST}), f"model.norm.weight in {FIRST}"),
        (lambda table: table.update({"model.extra.weight": LAST}), f"model.extra.weight in {LAST}"),
        (
            lambda table: table.update({"model.norm.weight": "../model.safetensors"}),
            "names files outside its directory: ../model.safetensors",
        ),
        (lambda table: table.update({"model.norm.weight": 5}), 'no "weight_map" of tensor names to file names'),
    ],
)
def test_an_index_that_says_what_is_not_so_is_refused(sharded: Path, change: Callable[[dict[str, str]], object], words: str) -> None:
    changed_index(sharded, change)
    with pytest.raises(UsageError) as caught:
        read_params(sharded, TINY)
    assert words in str(caught.value)
    assert INDEX in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}'])
def test_a_broken_index_is_named(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    with pytest.raises(UsageError, match=r"model\.safetensors\.index\.json"):
        read_params(sharded, TINY)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    again = load_file(sharded / LAST) | {"model.embed_tokens.weight": np.zeros((11, 8), np.float32)}
    save_file(again, sharded / LAST)
    with pytest.raises(UsageError, match=rf"embed_tokens.weight is also in {FIRST}"):
        read_params(sharded, TINY)


def test_shards_are_found_through_the_index_and_files_outside_it_ignored(sharded: Path) -> None:
    save_file({"model.norm.weight": np.zeros(3, np.float32)}, sharded / "consolidated.safetensors")
    jax.tree.map(np.testing.assert_array_equal, read_params(sharded, TINY), initialise(TINY, seed=1))


def test_a_type_that_is_no_plain_float_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(ml_dtypes.float8_e4m3fn)
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(UsageError, match=r"model\.norm\.weight: type F8_E4M3; one of F32, F16, BF16, F64 expected"):
        read_params(tmp_path, TINY)


def test_a_config_of_another_model_is_told_with_all_differences(tmp_path: Path) -> None:
    """qkv biases, head norms and more layers declared by the config, none of them in the file."""
    written(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    other = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "num_hidden_layers": 4}
    del tree["mlp_bias"]
    (tmp_path / "config.json").write_text(json.dumps(tree | other))
    with pytest.raises(UsageError) as caught:
        read_params(tmp_path, read_spec(tmp_path))
    assert "q_norm.weight: missing" in str(caught.value)
    assert str(caught.value).count("missing") == 2 * 4 + 9


def test_a_damaged_count_is_told_shortly(tmp_path: Path) -> None:
    written(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(tree | {"num_hidden_layers": 9000}))
    with pytest.raises(UsageError, match="81,002 tensors expected for 9000 layers; 29 found"):
        read_params(tmp_path, read_spec(tmp_path))


def test_pickled_weights_are_not_read_and_said_so(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"has no \*\.safetensors file; \*\.bin files are not read"):
        read_params(tmp_path, TINY)
