"""config.json of a model directory, to and from `ModelSpec`. No tensors.

Whatever changes the mathematics and is not supported is refused by name: a setting passed over in silence would train a
different model. `files.py` calls this; so does whoever needs a model's shape before its weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.errors import Problem, UsageError
from slipstream.models.spec import ModelSpec
from slipstream.weights.json_object import read_json
from slipstream.weights.special_ids import SpecialIds, generation_tree

Tree = Mapping[str, Any]

_ARCHITECTURE = "LlamaForCausalLM"
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {  # fields that change the mathematics, with the values that leave it as it is
    "model_type": ("llama",),
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
}
_PLAIN_ROPE = ({}, {"rope_type": "default"}, {"type": "default"})


def read_spec(directory: Path) -> ModelSpec:
    """The decoder's shape from config.json. Raises UsageError with every field that is missing, wrong or not supported."""
    path = directory / "config.json"
    tree = read_json(path)
    reader = _Reader(tree)
    problems = _unsupported(tree)
    heads = reader.whole("num_attention_heads")
    d_model = reader.whole("hidden_size")
    fields = {
        "vocab": reader.whole("vocab_size"),
        "d_model": d_model,
        "layers": reader.whole("num_hidden_layers"),
        "heads": heads,
        "kv_heads": reader.whole("num_key_value_heads", heads),
        "head_dim": reader.whole("head_dim", d_model // heads),
        "d_ff": reader.whole("intermediate_size"),
        "rope_theta": reader.rope_theta(),
        "norm_eps": reader.number("rms_norm_eps", 1e-6),
        "tied": reader.flag("tie_word_embeddings", False),
        "context": reader.whole("max_position_embeddings", 2048),
    }
    problems += reader.problems
    if not problems:
        try:
            return ModelSpec(**fields)
        except ValueError as error:
            problems = [Problem(field="config.json", value="as a whole", fix=str(error))]
    lines = "\n".join(f"  {problem}" for problem in problems)
    raise UsageError(f"{path} describes a model that cannot be used, {len(problems)} problem{'s' * (len(problems) != 1)}:\n{lines}")


def config_tree(spec: ModelSpec, special: SpecialIds, dtype: str) -> dict[str, Any]:
    """config.json of `spec`; old and new names of a field both where readers differ."""
    return {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": spec.vocab,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.d_ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": spec.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": dtype,
        "dtype": dtype,
        **generation_tree(special),
    }


class _Reader:
    """Typed access to the fields of config.json that collects problems; a bad field reads as 1."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.problems: list[Problem] = []

    def whole(self, field: str, default: int | None = None) -> int:
        value = self._value(field, default)
        return value if _is_whole(value) and value > 0 else self._bad(field, "must be a whole number above 0")

    def number(self, field: str, default: float) -> float:
        value = self._value(field, default)
        return float(value) if _is_number(value) and value > 0 else self._bad(field, "must be a number above 0")

    def flag(self, field: str, default: bool) -> bool:
        value = self._value(field, default)
        return value if isinstance(value, bool) else bool(self._bad(field, "must be true or false"))

    def rope_theta(self) -> float:
        """`rope_theta`, at the top or inside the newer `rope_parameters`."""
        parameters = self._tree.get("rope_parameters")
        nested = parameters.get("rope_theta") if isinstance(parameters, dict) else None
        top = self._tree.get("rope_theta")
        if nested is not None and top is not None and nested != top:
            return self._bad("rope_theta", f"rope_parameters.rope_theta = {nested!r} differs; keep one")
        if nested is None:
            return self.number("rope_theta", 10_000.0)
        return float(nested) if _is_number(nested) and nested > 0 else self._bad("rope_parameters", "rope_theta must be a number above 0")

    def _value(self, field: str, default: Any) -> Any:
        value = self._tree.get(field)
        return default if value is None else value

    def _bad(self, field: str, fix: str) -> int:
        value = repr(self._tree[field]) if field in self._tree else "(absent)"
        self.problems.append(Problem(field=field, value=value, fix=fix))
        return 1


def _unsupported(tree: Tree) -> list[Problem]:
    """Fields whose value changes the mathematics beyond what the decoder can do."""
    problems = []
    architectures = tree.get("architectures")
    if architectures not in (None, [_ARCHITECTURE]):
        problems.append(Problem(field="architectures", value=repr(architectures), fix=f"only {_ARCHITECTURE} is supported"))
    for field, accepted in _SUPPORTED.items():
        value = tree.get(field, accepted[0])
        if field == "sliding_window" and tree.get("use_sliding_window") is False:
            continue
        if value not in accepted:
            problems.append(Problem(field=field, value=repr(value), fix=f"not supported; only {json.dumps(accepted[0])} is"))
    return problems + _unsupported_rope(tree)


def _unsupported_rope(tree: Tree) -> list[Problem]:
    """Scaled or partial rotary positions, under the older or the newer name of the field."""
    problems = []
    for field in ("rope_scaling", "rope_parameters"):
        value = tree.get(field) or {}
        rest = {name: part for name, part in value.items() if name != "rope_theta"} if isinstance(value, dict) else value
        if rest not in _PLAIN_ROPE:
            problems.append(Problem(field=field, value=repr(value), fix="not supported; only plain rotary positions (type default) are"))
    return problems


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
