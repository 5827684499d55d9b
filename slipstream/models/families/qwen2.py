"""Qwen 2 and 2.5: biases on queries, keys and values; often more rows in the embedding than tokens (arXiv 2407.10671)."""

from typing import Any

from slipstream.models.families.decoder_fields import DEFAULTS, read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.families.window_fields import read_optional_windows, write_optional_windows
from slipstream.models.spec import ModelSpec

QWEN_DEFAULTS = {
    **DEFAULTS,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "use_sliding_window": False,
}


def _read(fields: Fields) -> dict[str, Any]:
    found = read_decoder(fields)
    return found | {"rope": read_rope(fields), "windows": read_optional_windows(fields, found["layers"]), "qkv_bias": True}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_decoder(spec) | write_rope(spec) | write_optional_windows(spec)


QWEN2 = Family(architecture="Qwen2ForCausalLM", model_type="qwen2", defaults=QWEN_DEFAULTS, read=_read, write=_write)
