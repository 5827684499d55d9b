"""A safetensors file written tensor by tensor: the library's own writer wants all of them in memory, twice.

The format (huggingface.co/docs/safetensors): eight bytes of header length, a JSON header with type, shape and place of each
tensor, padded by spaces, then the tensors' bytes one after another.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES: Mapping[str, np.dtype] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
NAMES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "uint32": "U32", "bool": "BOOL"}
_ALIGNMENT = 8


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, read: Callable[[str], np.ndarray]) -> None:
    """Write the tensors named in `shapes`, each got from `read` when its turn comes; all as `dtype` (see `DTYPES`), on disk when done."""
    with path.open("wb") as file:
        file.write(safetensors_header({name: (shape, DTYPES[dtype]) for name, shape in shapes.items()}, {"format": "pt"}))
        for name, shape in shapes.items():
            tensor = np.ascontiguousarray(read(name).astype(DTYPES[dtype], copy=False))
            assert tensor.shape == shape, f"{name}: {tensor.shape} for {shape}"
            file.write(tensor.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def safetensors_header(tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file whose tensors' bytes follow in this order. Raises KeyError for a type that `NAMES` does not have."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (shape, dtype) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype.name], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
