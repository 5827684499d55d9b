"""The weights of the golden models: every tensor a fixed function of its name and shape, so no weights are kept.

Numpy only: the script that makes the goldens and the tests that read them build the same tensors. Only integer arithmetic,
multiplication, division and square root are used, so the values are the same on every machine and with every version of numpy.
"""

import hashlib

import numpy as np

_HALVES = 4
_HALF_DEVIATION = np.sqrt(_HALVES * (2.0**32 - 1) / 12)
"""Deviation of the sum of four uniform 16-bit integers."""


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """`values` as float32 rounded to the nearest bfloat16 (ties to even), hence exact in either type."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def bell(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of mean 0 and deviation 1, nearly normal (the sum of four uniform ones), drawn from the counter that `name` keys."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    words = np.random.Philox(key=key).random_raw(int(np.prod(shape)))
    halves = sum((words >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(_HALVES))
    return ((halves.astype(np.float64) - _HALVES * 65535 / 2) / _HALF_DEVIATION).reshape(shape)


def tensor(name: str, shape: tuple[int, ...], *, gemma: bool) -> np.ndarray:
    """The tensor `name` of a safetensors file, float32 with bfloat16 values.

    A norm's weight scatters around 1; around 0 for `gemma`, which multiplies by one plus it. A matrix is scaled by its last axis,
    its inputs; embeddings and heads a little wider than the rest, so that logits lie well apart. The last norm of `gemma` multiplies
    by either sign: its embeddings are large beside its layers and shared with the head, and it would otherwise repeat every token.
    """
    values = bell(name, shape)
    if gemma and name == "model.norm.weight":
        return to_bfloat16(values - 1.0)
    if name.endswith("norm.weight"):
        return to_bfloat16(0.3 * values + (0.0 if gemma else 1.0))
    if name.endswith(".bias"):
        return to_bfloat16(0.3 * values)
    gain = 2.0 if "embed_tokens" in name or "lm_head" in name else 1.5
    return to_bfloat16(gain / np.sqrt(shape[-1]) * values)
