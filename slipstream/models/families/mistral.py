"""Mistral 7B and its relatives: Llama's shape, with one window for all layers or none (Jiang et al. 2023, arXiv 2310.06825)."""

from typing import Any

from slipstream.models.families.decoder_fields import DEFAULTS, read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.spec import ModelSpec


def _read(fields: Fields) -> dict[str, Any]:
    found = read_decoder(fields)
    width = fields.maybe_whole("sliding_window")
    return found | {"rope": read_rope(fields), "windows": None if width is None else (width,) * found["layers"]}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_decoder(spec) | write_rope(spec) | {"sliding_window": max(spec.windows) if spec.windows else None}


MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    defaults={**DEFAULTS, "max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    read=_read,
    write=_write,
)
