"""A fingerprint of weights: equal for equal values, wherever they were read from. Called by evaluations."""

import hashlib

import numpy as np

from slipstream.models.parameters import Params, declarations, leaf
from slipstream.models.spec import ModelSpec


def weight_digest(params: Params, spec: ModelSpec) -> str:
    """16 hexadecimal digits of every declared parameter's place, shape, type and values. One parameter is on the host at a time."""
    found = hashlib.sha256()
    for item in declarations(spec):
        array = np.ascontiguousarray(leaf(params, item.path))
        found.update(f"{item.path} {array.shape} {array.dtype}\n".encode())
        found.update(array.view(np.uint8).data)
    return found.hexdigest()[:16]
