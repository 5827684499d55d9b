"""Model directories round-trip bit for bit; a directory that does not fit its config.json is refused with every difference."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slipstream.core.errors import RunFailed, UsageError
from slipstream.models.parameters import Params, initialise
from slipstream.models.spec import ModelSpec
from slipstream.weights.files import read_params, read_texts, write_model
from slipstream.weights.hf_config import read_spec
from tests.weights.models import SPECIAL, TINY, UNTIED

SINGLE = "model.safetensors"


def written(directory: Path, spec: ModelSpec = TINY, dtype: str = "float32") -> Params:
    params = initialise(spec, seed=1)
    write_model(directory, spec, params, special=SPECIAL, dtype=dtype)
    return params


def change_tensors(directory: Path, **changes: np.ndarray | None) -> None:
    """Replace tensors of the file by name (None removes)."""
    tensors = load_file(directory / SINGLE) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, directory / SINGLE)


def assert_equal(left: Params, right: Params) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("spec", [TINY, UNTIED])
def test_float32_comes_back_bit_for_bit(tmp_path: Path, spec: ModelSpec) -> None:
    params = written(tmp_path, spec)
    assert read_spec(tmp_path) == spec
    assert_equal(read_params(tmp_path, spec), params)


def test_bfloat16_is_rounded_once_and_then_stays(tmp_path: Path) -> None:
    params = written(tmp_path, dtype="bfloat16")
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert_equal(read_params(tmp_path, TINY, jnp.bfloat16), rounded)
    assert_equal(read_params(tmp_path, TINY), jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded))


def test_the_file_has_the_layout_of_a_linear_layer(tmp_path: Path) -> None:
    """q_proj.weight times x equals the decoder's einsum: out features first, heads before their width."""
    params = written(tmp_path)
    tensor = load_file(tmp_path / SINGLE)["model.layers.2.self_attn.q_proj.weight"]
    x = np.arange(TINY.d_model, dtype=np.float32)
    expected = jnp.einsum("d,dhk->hk", x, params.layers.q[2])
    np.testing.assert_allclose((tensor @ x).reshape(TINY.heads, TINY.head_dim), expected, rtol=1e-5)


def test_every_difference_is_reported_at_once(tmp_path: Path) -> None:
    written(tmp_path)
    change_tensors(
        tmp_path,
        **{
            "model.norm.weight": None,
            "model.layers.0.mlp.up_proj.weight": np.zeros((12, 9), np.float32),
            "model.layers.1.self_attn.q_proj.bias": np.zeros(24, np.float32),
            "model.layers.1.input_layernorm.weight": np.zeros(8, np.int8),
        },
    )
    with pytest.raises(UsageError) as caught:
        read_params(tmp_path, TINY)
    assert str(caught.value).splitlines()[1:] == [
        "  model.layers.0.mlp.up_proj.weight: shape [12, 9]; [12, 8] expected",
        "  model.norm.weight: missing; shape [8] expected",
        "  model.layers.1.self_attn.q_proj.bias: extra, shape [24]; no such tensor is expected",
        "  model.layers.1.input_layernorm.weight: type I8; one of F32, F16, BF16, F64 expected",
    ]


@pytest.mark.parametrize(("layers", "word"), [(2, "extra"), (4, "missing")])
def test_a_wrong_layer_count_is_refused(tmp_path: Path, layers: int, word: str) -> None:
    written(tmp_path)
    with pytest.raises(UsageError, match="9 problems") as caught:
        read_params(tmp_path, replace(TINY, layers=layers))
    assert str(caught.value).count(f": {word}") == 9


def test_a_head_beside_a_tied_embedding_must_equal_it(tmp_path: Path) -> None:
    params = written(tmp_path)
    change_tensors(tmp_path, **{"lm_head.weight": np.array(params.embed)})
    assert_equal(read_params(tmp_path, TINY), params)
    change_tensors(tmp_path, **{"lm_head.weight": np.array(params.embed) + 1})
    with pytest.raises(UsageError, match="set tie_word_embeddings to false"):
        read_params(tmp_path, TINY)


def test_saved_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    params = written(tmp_path)
    change_tensors(tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3, np.float32)})
    assert_equal(read_params(tmp_path, TINY), params)


def test_absent_directory_and_absent_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_params(tmp_path / "none", TINY)
    with pytest.raises(UsageError, match=r"has no \*\.safetensors file"):
        read_params(tmp_path, TINY)


def test_one_tensor_in_two_files_without_an_index_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").write_bytes((tmp_path / "one.safetensors").read_bytes())
    with pytest.raises(UsageError, match=r"is also in one\.safetensors"):
        read_params(tmp_path, TINY)


def test_texts_are_copied_as_they_are(tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / "b"
    written(source)
    (source / "tokenizer.json").write_text('{"é": 1}')
    (source / "chat_template.jinja").write_text("{{ messages }}")
    write_model(copy, TINY, initialise(TINY, seed=2), special=SPECIAL, texts=read_texts(source))
    assert read_texts(copy) == read_texts(source) != {}
    assert not list(copy.glob(".*"))


def test_a_place_that_cannot_be_written_is_a_failed_run_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot be written"):
        written(tmp_path / "file" / "model")
