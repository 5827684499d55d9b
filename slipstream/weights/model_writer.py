"""Writes a model directory: shards of safetensors with their index, tokenizer files, generation_config.json, and config.json last.

Everything large is written under hidden names first. Only when all of it is on disk do the new files take the old ones' places,
so a full disk leaves the model that was there, and no shard or index of it survives beside the new ones.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import RunFailed, UsageError
from slipstream.models.spec import ModelSpec
from slipstream.telemetry.atomic import atomic_write_bytes, remove_temporaries
from slipstream.weights.differences import file_shapes
from slipstream.weights.hf_config import config_tree
from slipstream.weights.safetensors_writer import DTYPES, write_safetensors
from slipstream.weights.special_ids import SpecialIds, generation_tree
from slipstream.weights.tensor_files import INDEX, SINGLE

MAX_SHARD_BYTES = 5_000_000_000  # as on the hub
Shapes = Mapping[str, tuple[int, ...]]

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_GENERATION = "generation_config.json"


def write_tensors(
    directory: Path,
    spec: ModelSpec,
    read: Callable[[str], np.ndarray],
    *,
    special: SpecialIds,
    dtype: str = "float32",
    texts: Mapping[str, bytes] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the decoder `spec`; `read` gives a tensor in the layout of files by its name, and is asked for one at a time.

    `texts` are written beside the weights; a generation_config.json among them replaces the one made of `special`. Raises
    ConfigError where the family's config.json cannot describe `spec`, RunFailed where the disk refuses.
    """
    config = config_tree(spec, special, dtype)
    shards = plan_shards(file_shapes(spec), DTYPES[dtype].itemsize, max_shard_bytes)
    staged = {name: directory / f".{name}.{os.getpid()}.tmp" for name in shards}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_temporaries(directory)
        for name, shapes in shards.items():
            write_safetensors(staged[name], shapes, dtype, read)
        _swap(directory, staged)
        if list(shards) != [SINGLE]:
            atomic_write_bytes(directory / INDEX, _json(_index_tree(shards, DTYPES[dtype].itemsize)))
        for name, content in ({_GENERATION: _json(generation_tree(special))} | dict(texts or {})).items():
            atomic_write_bytes(directory / name, content)
        atomic_write_bytes(directory / "config.json", _json(config))
    except OSError as error:
        raise RunFailed(f"the model cannot be written to {directory}: {error}") from error
    finally:
        if directory.is_dir():
            for path in staged.values():
                path.unlink(missing_ok=True)


def refuse_filled(out: Path) -> None:
    """Raises UsageError where `out` is anything but absent or an empty directory."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty directory; give another --out")


def plan_shards(shapes: Shapes, itemsize: int, max_shard_bytes: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The tensors of each file, in order; a tensor above the limit has a file of its own. One file has the name of a whole model."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * itemsize
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += size
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard for number, shard in enumerate(shards, 1)}


def _swap(directory: Path, staged: Mapping[str, Path]) -> None:
    """Old weights out, new ones in. Without config.json the directory is no model until it is whole again."""
    (directory / "config.json").unlink(missing_ok=True)
    for path in directory.iterdir():
        if path.name in (SINGLE, INDEX) or _SHARD.fullmatch(path.name):
            path.unlink()
    for name, path in staged.items():
        path.replace(directory / name)


def _index_tree(shards: Mapping[str, Shapes], itemsize: int) -> dict[str, Any]:
    total = sum(math.prod(shape) * itemsize for shard in shards.values() for shape in shard.values())
    return {"metadata": {"total_size": total}, "weight_map": {name: file for file, shard in shards.items() for name in shard}}


def _json(tree: Mapping[str, object]) -> bytes:
    return (json.dumps(tree, indent=2) + "\n").encode()
