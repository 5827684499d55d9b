"""Gemma 2: norms on both sides of each block, soft caps, every second layer with a window (arXiv 2408.00118)."""

from typing import Any

from slipstream.models.families.decoder_fields import DEFAULTS, read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.families.window_fields import read_windows, write_windows
from slipstream.models.spec import ModelSpec

GEMMA_DEFAULTS = {
    **{name: value for name, value in DEFAULTS.items() if name != "hidden_act"},
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def read_gemma(fields: Fields) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    fields.only("attention_bias", False)
    fields.only("use_bidirectional_attention", False)
    fields.only("hidden_act", fields.value("hidden_activation"))  # some files have the older name as well
    found, scalar = read_decoder(fields, "hidden_activation"), fields.number("query_pre_attn_scalar")
    return found | {
        "norm_plus_one": True,
        "sandwich_norms": True,
        "scale_embedding": True,
        "query_scalar": None if scalar == found["head_dim"] else scalar,
        "attention_softcap": fields.maybe_number("attn_logit_softcapping"),
        "logit_softcap": fields.maybe_number("final_logit_softcapping"),
    }


def write_gemma(spec: ModelSpec) -> dict[str, Any]:
    """The inverse of `read_gemma`, with the windows."""
    scalar = spec.head_dim if spec.query_scalar is None else spec.query_scalar
    own = {
        "attention_bias": False,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,  # readers insist on the whole number
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }
    return write_decoder(spec, "hidden_activation") | own | write_windows(spec)


def _read(fields: Fields) -> dict[str, Any]:
    found = read_gemma(fields)
    layers, width = found["layers"], fields.maybe_whole("sliding_window")
    fields.only("sliding_window_size", width)  # some files have this older name as well
    windows = read_windows(fields, layers, width, [layer % 2 == 0 for layer in range(layers)])
    return found | {"rope": read_rope(fields), "windows": windows}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_gemma(spec) | write_rope(spec)


GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    defaults={**GEMMA_DEFAULTS, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    read=_read,
    write=_write,
)
