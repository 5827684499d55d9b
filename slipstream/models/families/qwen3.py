"""Qwen 3: each head's query and key are normalised, no biases (arXiv 2505.09388)."""

from typing import Any

from slipstream.models.families.decoder_fields import read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.qwen2 import QWEN_DEFAULTS
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.families.window_fields import read_optional_windows, write_optional_windows
from slipstream.models.spec import ModelSpec


def _read(fields: Fields) -> dict[str, Any]:
    fields.only("attention_bias", False)
    found = read_decoder(fields)
    return found | {"rope": read_rope(fields), "windows": read_optional_windows(fields, found["layers"]), "qk_norm": True}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_decoder(spec) | write_rope(spec) | write_optional_windows(spec) | {"attention_bias": False}


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**QWEN_DEFAULTS, "head_dim": 128},
    read=_read,
    write=_write,
)
