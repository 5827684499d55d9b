"""Token ids with a meaning of their own: read from a model directory's JSON files, and written to generation_config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.weights.json_object import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Token ids with a meaning of their own. Worked example (SmolLM2): bos 1, eos (2,), pad 2."""

    bos: int | None  # begins a text; None where the model has none
    eos: tuple[int, ...]  # each ends a completion
    pad: int | None  # fills rows; None where the model has none


def read_special_ids(directory: Path) -> SpecialIds:
    """Special token ids: generation_config.json first, config.json for what it leaves open. Raises UsageError."""
    trees = [read_json(path) for name in ("generation_config.json", "config.json") if (path := directory / name).exists()]

    def ids(field: str) -> tuple[int, ...]:
        value = next((tree[field] for tree in trees if tree.get(field) is not None), ())
        values = value if isinstance(value, list | tuple) else [value]
        if not all(type(item) is int and item >= 0 for item in values):
            raise UsageError(f"{directory}: {field} = {value!r} must be a token id or a list of token ids")
        return tuple(values)

    bos, pad = ids("bos_token_id"), ids("pad_token_id")
    return SpecialIds(bos=bos[0] if bos else None, eos=ids("eos_token_id"), pad=pad[0] if pad else None)


def read_stop_ids(directory: Path) -> tuple[int, ...]:
    """Token ids that end a completion. Raises UsageError where the directory names none: samples would never stop."""
    stops = read_special_ids(directory).eos
    if not stops:
        raise UsageError(f"{directory}: neither generation_config.json nor config.json has eos_token_id; add the id of the stop token")
    return stops


def generation_tree(special: SpecialIds) -> dict[str, Any]:
    """generation_config.json: the special ids that there are; several stop ids become a list."""
    eos = special.eos[0] if len(special.eos) == 1 else list(special.eos)
    found = {"bos_token_id": special.bos, "eos_token_id": eos, "pad_token_id": special.pad}
    return {name: value for name, value in found.items() if value is not None and value != []}
