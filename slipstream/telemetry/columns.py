"""Numbers for the page's embedded data: long columns as base64 of little-endian arrays, short ones as rounded lists. Pure."""

import base64
import math
from typing import Any

import numpy as np

_KINDS = {"u1": "u1", "u2": "<u2", "u4": "<u4", "i4": "<i4", "f4": "<f4"}

Packed = dict[str, str]


def packed(values: np.ndarray, kind: str) -> Packed:
    """`values` as {"kind", "base64"}; the page makes a typed array of it. Raises where they do not fit the kind."""
    array = np.asarray(values)
    dtype = np.dtype(_KINDS[kind])
    if dtype.kind in "iu" and len(array):
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise ValueError(f"values from {array.min()} to {array.max()} do not fit {kind}")
    return {"kind": kind, "base64": base64.b64encode(array.astype(dtype).tobytes()).decode("ascii")}


def rounded(values: Any, digits: int = 5) -> list[Any]:
    """`values` with `digits` significant digits; None and non-finite ones are None."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}") for value in values]
