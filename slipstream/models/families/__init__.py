"""Families of models: which config.json means which `ModelSpec`, and back. A small file a family; no tensors, no arrays.

Whatever changes the mathematics and cannot be computed is refused by name: a setting passed over in silence would train a
different model. Called by the weights room.
"""

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any

from slipstream.core.errors import ConfigError, Problem, near_names
from slipstream.models.families.family import Family
from slipstream.models.families.fields import Fields
from slipstream.models.families.gemma2 import GEMMA2
from slipstream.models.families.gemma3 import GEMMA3
from slipstream.models.families.inert import INERT
from slipstream.models.families.llama import LLAMA
from slipstream.models.families.mistral import MISTRAL
from slipstream.models.families.qwen2 import QWEN2
from slipstream.models.families.qwen3 import QWEN3
from slipstream.models.families.qwen3_moe import QWEN3_MOE
from slipstream.models.spec import ModelSpec

FAMILIES: Mapping[str, Family] = {  # by ModelSpec.family
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
}


def read_config(tree: Mapping[str, Any]) -> ModelSpec:
    """The decoder that a config.json describes. Raises ConfigError with every field that is missing, wrong, unknown or not supported."""
    name = _family_name(tree)
    family = FAMILIES[name]
    fields = Fields(tree, family.defaults)
    fields.only("model_type", family.model_type)
    found = family.read(fields)
    fields.refuse_unread(INERT)
    if fields.problems:
        raise ConfigError(fields.problems)
    try:
        return ModelSpec(family=name, **found)
    except ValueError as error:
        raise ConfigError([Problem(field="config.json", value="as a whole", fix=str(error))]) from error


def write_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of `spec`, without token ids and type. Raises ConfigError where its family's format cannot say what `spec` does."""
    family = FAMILIES[spec.family]
    tree = {"architectures": [family.architecture], "model_type": family.model_type, **family.write(spec)}
    wanted, back = replace(spec, known_tokens=None), read_config(tree)
    differing = [field.name for field in dataclass_fields(ModelSpec) if getattr(wanted, field.name) != getattr(back, field.name)]
    if differing:
        fix = f"config.json of the {spec.family} family cannot say this"
        raise ConfigError(Problem(field=name, value=repr(getattr(wanted, name)), fix=fix) for name in differing)
    return tree


def _family_name(tree: Mapping[str, Any]) -> str:
    """By `architectures`, or by `model_type` where that is absent. Raises ConfigError for one that is not supported."""
    by_architecture = {family.architecture: name for name, family in FAMILIES.items()}
    by_type = {family.model_type: name for name, family in FAMILIES.items()}
    for field, known in (("architectures", by_architecture), ("model_type", by_type)):
        value = tree.get(field)
        word = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(word, str) and word in known:
            return known[word]
        if value is not None:
            raise ConfigError([Problem(field=field, value=repr(value), fix=f"not supported; {near_names(str(word), known)}")])
    fix = f"needed to know the architecture; known: {', '.join(by_architecture)}"
    raise ConfigError([Problem(field="architectures", value="(absent)", fix=fix)])
