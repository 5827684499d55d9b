"""config.json of a model directory, to and from `ModelSpec`. No tensors; what the fields mean is said in `models.families`.

`files.py` calls this; so does whoever needs a model's shape before its weights.
"""

from pathlib import Path
from typing import Any

from slipstream.core.errors import ConfigError, UsageError
from slipstream.models.families import read_config, write_config
from slipstream.models.spec import ModelSpec
from slipstream.weights.json_object import read_json
from slipstream.weights.special_ids import SpecialIds, generation_tree


def read_spec(directory: Path) -> ModelSpec:
    """The decoder's shape from config.json. Raises UsageError with every field that is missing, wrong, unknown or not supported."""
    path = directory / "config.json"
    try:
        return read_config(read_json(path))
    except ConfigError as error:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        count = f"{len(error.problems)} problem{'s' * (len(error.problems) != 1)}"
        raise UsageError(f"{path} describes a model that cannot be used, {count}:\n{lines}") from None


def config_tree(spec: ModelSpec, special: SpecialIds, dtype: str) -> dict[str, Any]:
    """config.json of `spec`, in the fields that old and new readers both know. Raises ConfigError where it cannot say what `spec` does."""
    return write_config(spec) | {"torch_dtype": dtype, "dtype": dtype, **generation_tree(special)}
