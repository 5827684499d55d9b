"""What a family of models is: the name of its architecture and how its config.json and a `ModelSpec` say the same thing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.models.families.fields import Fields
from slipstream.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family. `read` and `write` are inverse to each other; only what differs from other families is in its file."""

    architecture: str  # in config.json under "architectures", e.g. "LlamaForCausalLM"
    model_type: str  # in config.json, e.g. "llama"
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what an absent field means in this family's format
    read: Callable[[Fields], dict[str, Any]]  # arguments of ModelSpec
    write: Callable[[ModelSpec], dict[str, Any]]  # fields of config.json
