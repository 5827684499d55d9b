"""Model directories in Hugging Face layout: config.json, safetensors, tokenizer files. Read leaf by leaf, written whole.

Names and shapes are judged against the declarations before anything is loaded, and every difference is reported at once:
arrays index without bounds in a compiled program, so a wrong layer count that got past here would train a different model.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from slipstream.core.errors import RunFailed
from slipstream.models.parameters import Declaration, Params, declarations, from_leaves, leaf
from slipstream.models.spec import ModelSpec
from slipstream.telemetry.atomic import atomic_write_bytes
from slipstream.weights.differences import EMBED, HEAD, refuse, shape_differences
from slipstream.weights.hf_config import config_tree
from slipstream.weights.special_ids import SpecialIds, generation_tree
from slipstream.weights.tensor_files import SINGLE, Tensors, open_tensors

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
DTYPES: Mapping[str, np.dtype] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_FLOATS = ("F32", "F16", "BF16", "F64")


def read_params(directory: Path, spec: ModelSpec, dtype: jnp.dtype | type = jnp.float32) -> Params:
    """The weights of a model directory as a stacked tree on the default device.

    Raises UsageError naming the file when one is absent or damaged, and with every tensor that is missing, extra, of the
    wrong shape or of a type that is not a float.
    """
    with open_tensors(directory) as tensors:
        refuse(directory, _differences(tensors, spec))
        return from_leaves({declaration.path: _read_leaf(tensors, declaration, spec, dtype) for declaration in declarations(spec)})


def write_model(
    directory: Path,
    spec: ModelSpec,
    params: Params,
    *,
    special: SpecialIds,
    dtype: str = "float32",
    texts: Mapping[str, bytes] | None = None,
) -> None:
    """Write stacked `params` as a model directory; `texts` (see `read_texts`) are copied beside them.

    `dtype` is float32 or bfloat16 (rounded to nearest). Each file appears complete or not at all, config.json last.
    """
    found = {name: tensor for declaration in declarations(spec) for name, tensor in _file_tensors(params, declaration, spec)}
    write_tensors(directory, spec, found, special=special, dtype=dtype, texts=texts)


def write_tensors(
    directory: Path,
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    *,
    special: SpecialIds,
    dtype: str = "float32",
    texts: Mapping[str, bytes] | None = None,
) -> None:
    """`write_model` for tensors that already have the names and shapes of files. Raises RunFailed where the disk refuses."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _save(directory / SINGLE, {name: tensor.astype(DTYPES[dtype], copy=False) for name, tensor in tensors.items()})
        for name, content in (texts or {}).items():
            atomic_write_bytes(directory / name, content)
        atomic_write_bytes(directory / "generation_config.json", _json(generation_tree(special)))
        atomic_write_bytes(directory / "config.json", _json(config_tree(spec, special, dtype)))
    except (SafetensorError, OSError) as error:
        raise RunFailed(f"the model cannot be written to {directory}: {error}") from error


def read_texts(directory: Path) -> dict[str, bytes]:
    """Tokenizer and chat template files of a model directory, to be copied to another as they are."""
    return {name: path.read_bytes() for name in TEXT_FILES if (path := directory / name).exists()}


def _differences(tensors: Tensors, spec: ModelSpec) -> list[str]:
    """What the files have otherwise than `spec` declares: shapes, types, and an output matrix that belies the tie."""
    problems = shape_differences({name: tensors.shape(name) for name in tensors}, spec)
    declared = [name for declaration in declarations(spec) for name in declaration.file_names(spec) if name in tensors]
    for name in declared:
        if tensors.dtype(name) not in _FLOATS:
            problems.append(f"{name}: type {tensors.dtype(name)}; one of {', '.join(_FLOATS)} expected")
    if not problems and spec.tied and HEAD in tensors and not np.array_equal(tensors.read(HEAD), tensors.read(EMBED)):
        problems.append(f"{HEAD}: differs from {EMBED} though config.json ties them; set tie_word_embeddings to false")
    return problems


def _read_leaf(tensors: Tensors, declaration: Declaration, spec: ModelSpec, dtype: jnp.dtype | type) -> jax.Array:
    """One leaf; a stacked one is filled layer by layer, so that only it and one tensor are on the host at a time."""
    names = declaration.file_names(spec)
    if not declaration.stacked:
        return jnp.array(declaration.from_file(tensors.read(names[0]), spec), dtype)
    host = np.empty(declaration.shape(spec), np.dtype(dtype))
    for layer, name in enumerate(names):
        host[layer] = declaration.from_file(tensors.read(name), spec)
    return jnp.array(host)


def _file_tensors(params: Params, declaration: Declaration, spec: ModelSpec) -> Iterator[tuple[str, np.ndarray]]:
    host = np.asarray(leaf(params, declaration.path))
    layers = list(host) if declaration.stacked else [host]
    for name, tensor in zip(declaration.file_names(spec), layers, strict=True):
        yield name, declaration.to_file(tensor, spec)


def _save(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """The safetensors file, complete or not at all, readable by everyone as the other files are."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(dict(tensors), temporary, metadata={"format": "pt"})
        temporary.chmod(0o644)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _json(tree: Mapping[str, object]) -> bytes:
    return (json.dumps(tree, indent=2) + "\n").encode()
