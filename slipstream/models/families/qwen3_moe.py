"""Qwen 3 with experts in every layer (30B-A3B, 235B-A22B): Qwen 3's attention, a router and narrow feed-forwards."""

from typing import Any

from slipstream.models.families.decoder_fields import read_decoder, write_decoder
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.qwen2 import QWEN_DEFAULTS
from slipstream.models.families.rope_fields import read_rope, write_rope
from slipstream.models.spec import ExpertSpec, ModelSpec

_FIXED = {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0,  # this and the next are in files of the Coder models
    "use_qk_norm": True,
}
_COUNTS = ("num_experts", "num_local_experts")  # the older name and the newer one


def _read(fields: Fields) -> dict[str, Any]:
    for field, value in _FIXED.items():
        fields.only(field, value)
    found = read_decoder(fields)
    windows = _windows(fields, found["layers"])
    return found | {"rope": read_rope(fields), "windows": windows, "qk_norm": True, "experts": _experts(fields)}


def _experts(fields: Fields) -> ExpertSpec:
    counts = [fields.whole(name) for name in _COUNTS if fields.given(name)] or [fields.whole(_COUNTS[0])]
    if len(set(counts)) > 1:
        fields.bad(_COUNTS[0], f"{_COUNTS[1]} = {counts[1]} says otherwise; keep one")
    visited = fields.whole("num_experts_per_tok")
    if visited > counts[0]:
        visited = fields.bad("num_experts_per_tok", f"must be at most {_COUNTS[0]} = {counts[0]}")
    width, normalise = fields.whole("moe_intermediate_size"), fields.flag("norm_topk_prob")
    return ExpertSpec(count=counts[0], per_token=visited, d_ff=width, normalise=normalise)


def _windows(fields: Fields, layers: int) -> tuple[int, ...] | None:
    """All layers or none: which ones `max_window_layers` leaves out depends on the version of the reader."""
    width = fields.maybe_whole("sliding_window")
    if not fields.flag("use_sliding_window"):
        fields.value("max_window_layers")
        return None
    fields.only("max_window_layers", 0)
    return None if width is None else (width,) * layers


def _write(spec: ModelSpec) -> dict[str, Any]:
    assert spec.experts is not None
    tree = write_decoder(spec) | write_rope(spec)
    return tree | {
        "num_experts": spec.experts.count,
        "num_experts_per_tok": spec.experts.per_token,
        "moe_intermediate_size": spec.experts.d_ff,
        "norm_topk_prob": spec.experts.normalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
        "use_sliding_window": spec.windows is not None,
        "sliding_window": max(spec.windows) if spec.windows else None,
        "max_window_layers": 0 if spec.windows else spec.layers,
    }


QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    defaults={
        **{name: value for name, value in QWEN_DEFAULTS.items() if name != "max_window_layers"},
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    },
    read=_read,
    write=_write,
)
