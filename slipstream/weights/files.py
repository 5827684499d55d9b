"""Model directories in Hugging Face layout: config.json, safetensors, tokenizer files. Read leaf by leaf, written tensor by tensor.

Names and shapes are judged against the declarations before anything is loaded, and every difference is reported at once:
arrays index without bounds in a compiled program, so a wrong layer count that got past here would train a different model.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.parameters import Params, declarations, from_leaves, leaf
from slipstream.models.spec import ModelSpec
from slipstream.weights.differences import EMBED, HEAD, refuse, shape_differences
from slipstream.weights.leaves import read_leaf, staging_for
from slipstream.weights.model_writer import MAX_SHARD_BYTES, write_tensors
from slipstream.weights.special_ids import SpecialIds
from slipstream.weights.tensor_files import Tensors, open_tensors

TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("tokenizer.model", "vocab.json", "merges.txt", "generation_config.json"),
)

_FLOATS = ("F32", "F16", "BF16", "F64")


def read_params(
    directory: Path,
    spec: ModelSpec,
    dtype: jnp.dtype | type = jnp.float32,
    *,
    shardings: Mapping[tuple[str, ...], jax.sharding.Sharding] | None = None,
) -> Params:
    """The weights of a model directory as a stacked tree: on the default device, or as `shardings` (by declared path) says.

    Raises UsageError naming the file when one is absent or damaged, and with every tensor that is missing, extra, of the
    wrong shape or of a type that is not a float.
    """
    placed = shardings or {}
    with open_tensors(directory) as tensors:
        refuse(directory, _differences(tensors, spec))
        wanted = declarations(spec)
        staging = staging_for(wanted, spec, dtype, placed)
        return from_leaves({item.path: read_leaf(tensors, item, spec, dtype, placed.get(item.path), staging) for item in wanted})


def write_model(
    directory: Path,
    spec: ModelSpec,
    params: Params,
    *,
    special: SpecialIds,
    dtype: str = "float32",
    texts: Mapping[str, bytes] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write stacked `params` as a model directory; `texts` (see `read_texts`) are copied beside them.

    `dtype` is float32 or bfloat16 (rounded to nearest). Files of at most `max_shard_bytes`, with an index where there are several;
    a model that was there is replaced whole. One tensor is on the host at a time. Raises RunFailed where the disk refuses.
    """
    places = {name: (declaration, index) for declaration in declarations(spec) for index, name in declaration.tensors(spec)}

    def read(name: str) -> np.ndarray:
        declaration, index = places[name]
        return declaration.to_file(np.asarray(leaf(params, declaration.path)[index]), spec)

    write_tensors(directory, spec, read, special=special, dtype=dtype, texts=texts, max_shard_bytes=max_shard_bytes)


def read_texts(directory: Path) -> dict[str, bytes]:
    """Tokenizer, chat template and generation files of a model directory, to be copied to another as they are."""
    return {name: path.read_bytes() for name in TEXT_FILES if (path := directory / name).exists()}


def _differences(tensors: Tensors, spec: ModelSpec) -> list[str]:
    """What the files have otherwise than `spec` declares: shapes, types, and an output matrix that belies the tie."""
    problems = shape_differences({name: tensors.shape(name) for name in tensors}, spec)
    kinds = {name: tensors.dtype(name) for name in sorted(tensors)}
    problems += [f"{name}: type {kind}; one of {', '.join(_FLOATS)} expected" for name, kind in kinds.items() if kind not in _FLOATS]
    if not problems and spec.tied and HEAD in tensors and not np.array_equal(tensors.read(HEAD), tensors.read(EMBED)):
        problems.append(f"{HEAD}: differs from {EMBED} though config.json ties them; set tie_word_embeddings to false")
    return problems
