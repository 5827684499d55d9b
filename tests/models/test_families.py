"""config.json of every family is read as transformers writes it, old and new; what would change the mathematics is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slipstream.core.errors import ConfigError
from slipstream.models.families import FAMILIES, read_config, write_config
from slipstream.models.parameters import declarations
from slipstream.models.spec import RopeSpec
from tests.goldens.read import FAMILIES as GOLDEN
from tests.goldens.read import config, older_config, tensors

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def refusals(tree: dict[str, Any]) -> dict[str, str]:
    """Each refused field with what is said about it."""
    with pytest.raises(ConfigError) as caught:
        read_config(tree)
    return {problem.field: str(problem) for problem in caught.value.problems}


def without(tree: dict[str, Any], *names: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if name not in names} | changes


@pytest.mark.parametrize("golden", GOLDEN)
def test_old_and_new_form_mean_the_same_and_declare_the_tensors_that_transformers_saves(golden: str) -> None:
    spec = read_config(config(golden))
    assert read_config(older_config(golden)) == spec
    declared = {name: declaration.file_shape(spec) for declaration in declarations(spec) for _, name in declaration.tensors(spec)}
    assert declared == tensors(golden)


@pytest.mark.parametrize("golden", GOLDEN)
def test_what_is_written_is_read_back(golden: str) -> None:
    spec = read_config(config(golden))
    tree = json.loads(json.dumps(write_config(spec)))
    assert read_config(tree) == spec
    assert tree["architectures"] == config(golden)["architectures"]
    assert tree["model_type"] == config(golden)["model_type"]


def test_every_family_has_a_golden_model() -> None:
    assert {read_config(config(golden)).family for golden in GOLDEN} == set(FAMILIES)


@pytest.mark.parametrize("golden", GOLDEN)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
        ("torch_dtype", "float8_e4m3fn"),
        ("dtype", "int8"),
        ("model_type", "other"),
        ("embedding_multiplier", 12.0),  # Granite
        ("auto_map", {"AutoModelForCausalLM": "modeling_mine.Mine"}),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("num_hidden_layers", 10**12),
        ("num_hidden_layers", True),
        ("vocab_size", 2.5),
        ("tie_word_embeddings", "yes"),
        ("head_dim", "x"),
        ("rope_scaling", [1]),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused_in_every_family(golden: str, field: str, value: object) -> None:
    found = refusals(config(golden) | {field: value})
    assert found[field].startswith(f"{field} = {value!r}: ")


@pytest.mark.parametrize("golden", GOLDEN)
@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "su", None, 5])
def test_other_rotary_positions_are_refused(golden: str, kind: object) -> None:
    scaling = {"factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.0}
    tree = older_config(golden) | {"rope_scaling": {"rope_type": kind, **scaling}}
    assert set(refusals(tree)) & {"rope_scaling.rope_type", "rope_scaling.factor"}


@pytest.mark.parametrize(
    ("golden", "changes", "named"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"sliding_window": 4096}, "sliding_window"),
        ("llama", {"hidden_act": "relu"}, "hidden_act"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"hidden_act": None}, "hidden_act"),
        ("llama", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_moe", {"num_experts": 4}, "num_experts"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "max_window_layers"),
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ("qwen2_window", {"layer_types": None, "max_window_layers": "x"}, "max_window_layers"),
        ("qwen2_window", {"use_sliding_window": 1}, "use_sliding_window"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"hidden_act": "gelu"}, "hidden_act"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma2", {"attn_logit_softcapping": "x"}, "attn_logit_softcapping"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "rope_parameters.rope_theta"),
        ("gemma3", {"rope_local_base_freq": 5e4}, "rope_local_base_freq"),
        ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ("llama", {"architectures": ["Qwen2ForCausalLM"]}, "model_type"),
    ],
    ids=str,
)
def test_what_one_family_cannot_do_is_refused(golden: str, changes: dict[str, Any], named: str) -> None:
    assert named in refusals(config(golden) | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_theta": 7e5}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": 9.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": 2e4, "rope_type": "llama3", "type": "linear", **LLAMA3}}, "rope_parameters.type"),
        ({"rope_parameters": {"rope_theta": 2e4, "rope_type": "llama3", "factor": 8.0}}, "rope_parameters.low_freq_factor"),
        (
            {"rope_parameters": {"rope_theta": 2e4, "rope_type": "llama3", **LLAMA3, "low_freq_factor": 4}},
            "rope_parameters.high_freq_factor",
        ),
        ({"rope_parameters": {"rope_theta": 2e4, "rope_type": "default", "mrope_section": [1, 2]}}, "rope_parameters.mrope_section"),
        ({"rope_parameters": {"rope_theta": 2e4, "partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 2e4}}}, "rope_parameters.full_attention"),
    ],
    ids=str,
)
def test_rotary_positions_that_contradict_each_other_are_refused(changes: dict[str, Any], named: str) -> None:
    assert named in refusals(config("llama") | changes)


def test_agreeing_old_and_new_fields_are_accepted() -> None:
    tree = config("llama")
    both = tree | {"rope_theta": 2e4, "rope_scaling": {"type": "llama3", **LLAMA3}}
    assert read_config(both).rope == RopeSpec(theta=2e4, scaling="llama3", factor=8.0, low_factor=1.0, high_factor=4.0, original_context=64)


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_an_unknown_field_that_says_nothing_is_let_through(value: object) -> None:
    assert read_config(config("llama") | {"new_switch": value}) == read_config(config("llama"))


@pytest.mark.parametrize("value", [0, 1.0, True, "x", [1]])
def test_an_unknown_field_that_says_something_is_refused_with_the_way_out(value: object) -> None:
    message = refusals(config("llama") | {"new_switch": value})["new_switch"]
    assert message == f"new_switch = {value!r}: unknown field that may change the mathematics; if it does not, remove it from config.json"


LEAST = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4}


def test_absent_fields_take_the_defaults_of_the_family() -> None:
    def read(architecture: str, **more: Any):
        return read_config(LEAST | {"architectures": [architecture], **more})

    llama = read("LlamaForCausalLM")
    assert (llama.kv_heads, llama.head_dim, llama.rope.theta, llama.norm_eps, llama.tied, llama.context) == (4, 2, 1e4, 1e-6, False, 2048)
    assert read("MistralForCausalLM", num_key_value_heads=4).windows == (4096,) * 3
    assert read("MistralForCausalLM", num_key_value_heads=4, sliding_window=None).windows is None
    assert read("Qwen2ForCausalLM", num_key_value_heads=4).windows is None
    assert read("Qwen3ForCausalLM", num_key_value_heads=4).head_dim == 128
    gemma2, gemma3 = read("Gemma2ForCausalLM"), read("Gemma3ForCausalLM", num_hidden_layers=7)
    assert (gemma2.windows, gemma2.attention_softcap, gemma2.logit_softcap, gemma2.tied) == ((4096, 0, 4096), 50.0, 30.0, True)
    assert gemma3.windows == (4096,) * 5 + (0, 4096)
    assert gemma3.local_rope is not None
    assert (gemma3.rope.theta, gemma3.local_rope.theta, gemma3.attention_softcap) == (1e6, 1e4, None)


def test_windows_of_qwen_begin_at_max_window_layers() -> None:
    tree = without(config("qwen2_window"), "layer_types")
    assert read_config(tree).windows == (0, 8, 8)
    assert read_config(tree | {"max_window_layers": 0}).windows == (8, 8, 8)
    assert read_config(tree | {"max_window_layers": 28}).windows is None
    assert read_config(tree | {"use_sliding_window": False}).windows is None
    assert read_config(tree | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}).windows == (8, 0, 0)


def test_the_pattern_of_gemma3_is_read_where_layer_types_are_absent() -> None:
    tree = without(older_config("gemma3"), "layer_types", "sliding_window_pattern")
    assert read_config(tree | {"sliding_window_pattern": 2}).windows == (8, 0, 8, 0, 8, 0)
    assert read_config(tree).windows == (8, 8, 8, 8, 8, 0)


def test_all_problems_are_told_at_once() -> None:
    tree = {"architectures": ["LlamaForCausalLM"], "hidden_act": "relu", "mlp_bias": True, "hidden_size": 8, "rope_theta": 0, "surprise": 1}
    named = "mlp_bias num_hidden_layers num_attention_heads vocab_size intermediate_size hidden_act rope_theta surprise"
    assert list(refusals(tree)) == named.split()


def test_an_architecture_is_needed() -> None:
    assert "(absent)" in refusals(LEAST)["architectures"]
    assert read_config(LEAST | {"model_type": "llama"}).family == "llama"
    assert "gemma" in refusals(LEAST | {"model_type": "gemma"})["model_type"]
    assert "architectures" in refusals(LEAST | {"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]})


def test_a_shape_that_its_family_cannot_say_is_not_written() -> None:
    spec = read_config(config("llama"))
    with pytest.raises(ConfigError, match=r"qk_norm = True: config\.json of the llama family cannot say this"):
        write_config(replace(spec, qk_norm=True))
    with pytest.raises(ConfigError, match="windows"):
        write_config(replace(read_config(config("gemma2")), windows=(8, 0, 16, 0)))
    assert read_config(write_config(replace(spec, known_tokens=90))) == spec


def test_a_scaled_rope_of_windowed_layers_survives() -> None:
    spec = replace(read_config(config("gemma3")), local_rope=RopeSpec(theta=1e4, scaling="linear", factor=2.0))
    assert read_config(write_config(spec)) == spec
