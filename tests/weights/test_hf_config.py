"""config.json is read with the defaults of its format, and everything that would change the mathematics is refused by name."""

import json
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.weights.hf_config import config_tree, read_spec
from slipstream.weights.special_ids import SpecialIds, read_special_ids, read_stop_ids
from tests.weights.models import SPECIAL, TINY

LEAST = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def configured(directory: Path, **fields: object) -> Path:
    (directory / "config.json").write_text(json.dumps(LEAST | fields))
    return directory


def test_absent_fields_take_the_defaults_of_the_format(tmp_path: Path) -> None:
    spec = read_spec(configured(tmp_path))
    assert (spec.kv_heads, spec.head_dim, spec.rope_theta, spec.norm_eps, spec.tied, spec.context) == (4, 2, 10_000.0, 1e-6, False, 2048)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_tree(TINY, SPECIAL, "bfloat16")))
    assert read_spec(tmp_path) == TINY
    assert read_special_ids(tmp_path) == SPECIAL


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}, "sliding_window": None, "model_type": "llama"},
    ],
)
def test_rope_theta_is_read_from_both_places(tmp_path: Path, fields: dict) -> None:
    assert read_spec(configured(tmp_path, **fields)).rope_theta == 5e5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["Qwen2ForCausalLM"]),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("model_type", "mistral"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"bits": 4}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 32.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 2.5),
        ("num_hidden_layers", True),
        ("rms_norm_eps", -1),
        ("rope_theta", "big"),
        ("tie_word_embeddings", "yes"),
        ("head_dim", "x"),
    ],
)
def test_what_is_not_supported_is_refused_with_field_and_value(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        read_spec(configured(tmp_path, **{field: value}))
    assert f"  {field} = {value!r}: " in str(caught.value)
    assert "1 problem:" in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_act": "relu", "mlp_bias": True, "hidden_size": 8, "rope_theta": 0}))
    with pytest.raises(UsageError) as caught:
        read_spec(tmp_path)
    named = [line.split(" = ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    wanted = "hidden_act mlp_bias num_attention_heads vocab_size num_hidden_layers intermediate_size rope_theta"
    assert named == wanted.split()


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kv_heads = 3 does not divide heads = 4"):
        read_spec(configured(tmp_path, num_key_value_heads=3))


@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', "\xff"])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"config\.json"):
        read_spec(tmp_path)


def test_an_absent_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("config", "generation", "stops"),
    [
        ({"eos_token_id": 5}, None, (5,)),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8]}, (7, 8)),
        ({"eos_token_id": [5]}, {"pad_token_id": 0}, (5,)),
    ],
)
def test_stop_ids_come_from_the_generation_config_first(
    tmp_path: Path, config: dict, generation: dict | None, stops: tuple[int, ...]
) -> None:
    configured(tmp_path, **config)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_stop_ids(tmp_path) == stops


def test_a_model_that_never_stops_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add the id of the stop token"):
        read_stop_ids(configured(tmp_path))
    with pytest.raises(UsageError, match="eos_token_id = 'x'"):
        read_stop_ids(configured(tmp_path, eos_token_id="x"))


def test_special_ids_that_are_absent_are_none(tmp_path: Path) -> None:
    assert read_special_ids(configured(tmp_path, eos_token_id=0)) == SpecialIds(bos=None, eos=(0,), pad=None)
