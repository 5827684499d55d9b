"""The fields of config.json that all families share: sizes, norm, activation, tie. To and from `ModelSpec`."""

from collections.abc import Mapping
from typing import Any, Literal

from slipstream.models.families.fields import Fields
from slipstream.models.spec import ModelSpec

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_DTYPES = ("float32", "bfloat16", "float16")
_MOST_LAYERS = 10_000  # a damaged count must not become a list of that length

DEFAULTS: Mapping[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False}


def read_decoder(fields: Fields, activation: str = "hidden_act") -> dict[str, Any]:
    """Arguments of ModelSpec that every family has, but for rotary positions."""
    for name in ("torch_dtype", "dtype"):
        if fields.given(name) and str(fields.value(name)).removeprefix("torch.") not in _DTYPES:
            fields.bad(name, f"not supported; only {', '.join(_DTYPES)} are")
    fields.only("quantization_config", None)
    fields.only("partial_rotary_factor", 1)
    layers, heads = fields.whole("num_hidden_layers"), fields.whole("num_attention_heads")
    if layers > _MOST_LAYERS:
        layers = fields.bad("num_hidden_layers", f"must be at most {_MOST_LAYERS}")
    d_model = fields.whole("hidden_size")
    return {
        "vocab": fields.whole("vocab_size"),
        "d_model": d_model,
        "layers": layers,
        "heads": heads,
        "kv_heads": fields.whole("num_key_value_heads", otherwise=heads),
        "head_dim": _head_dim(fields, d_model, heads),
        "d_ff": fields.whole("intermediate_size"),
        "activation": fields.choice(activation, _ACTIVATIONS),
        "norm_eps": fields.number("rms_norm_eps"),
        "tied": fields.flag("tie_word_embeddings"),
        "context": fields.whole("max_position_embeddings"),
    }


def write_decoder(spec: ModelSpec, activation: str = "hidden_act") -> dict[str, Any]:
    """The inverse of `read_decoder`."""
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.d_ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        activation: {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[spec.activation],
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def _head_dim(fields: Fields, d_model: int, heads: int) -> int:
    if fields.value("head_dim") is None and not fields.problems and d_model % heads:
        return fields.bad("head_dim", f"hidden_size = {d_model} is not divisible by num_attention_heads = {heads}; give head_dim")
    return fields.whole("head_dim", otherwise=max(1, d_model // heads))
