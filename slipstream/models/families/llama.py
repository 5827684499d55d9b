"""Llama 1 to 3, SmolLM2 and whatever else has their shape: no biases, no windows; 3.1 stretches its rotary positions."""

from typing import Any

from slipstream.models.families.decoder_fields import DEFAULTS, read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.families.window_fields import refuse_windows
from slipstream.models.spec import ModelSpec


def _read(fields: Fields) -> dict[str, Any]:
    fields.only("attention_bias", False)
    fields.only("mlp_bias", False)
    refuse_windows(fields)
    return read_decoder(fields) | {"rope": read_rope(fields)}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_decoder(spec) | write_rope(spec) | {"attention_bias": False, "mlp_bias": False}


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    defaults={**DEFAULTS, "max_position_embeddings": 2048},
    read=_read,
    write=_write,
)
