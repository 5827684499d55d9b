"""Gemma 3, text only: Gemma 2 with normalised queries and keys, two rotary bases, every sixth layer without a window (arXiv 2503.19786)."""

from typing import Any

from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.gemma2 import GEMMA_DEFAULTS, read_gemma, write_gemma
from slipstream.models.families.rope_fields import read_two_ropes, write_two_ropes
from slipstream.models.families.window_fields import read_windows
from slipstream.models.spec import ModelSpec


def _read(fields: Fields) -> dict[str, Any]:
    found = read_gemma(fields)
    layers, width = found["layers"], fields.maybe_whole("sliding_window")
    written = fields.value("_sliding_window_pattern")  # some writers put an underscore before it
    pattern = fields.whole("sliding_window_pattern", otherwise=written if type(written) is int and written > 0 else 6)
    windows = read_windows(fields, layers, width, [bool((layer + 1) % pattern) for layer in range(layers)])
    rope, local_rope = read_two_ropes(fields)
    return found | {"rope": rope, "local_rope": local_rope, "windows": windows, "qk_norm": True}


def _write(spec: ModelSpec) -> dict[str, Any]:
    return write_gemma(spec) | write_two_ropes(spec)


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    defaults={**GEMMA_DEFAULTS, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
    read=_read,
    write=_write,
)
