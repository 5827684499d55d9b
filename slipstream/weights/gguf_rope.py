"""Llama 3's stretched rotary positions in a GGUF file: one factor a frequency, from which `RopeSpec` is found again.

The converter of llama.cpp writes the factors and forgets the four numbers that they came from. Those of Llama 3.1 to 3.3 differ
in one alone, the largest factor; the result is compared with all of the file's factors.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.models.spec import RopeSpec

FACTORS = "rope_freqs.weight"  # the tensor's name


def stretched(rope: RopeSpec, factors: np.ndarray, head_dim: int, source: Path) -> RopeSpec:
    """`rope` with Llama 3's scaling as `factors` [head_dim / 2] say. Raises UsageError where they are not Llama 3's."""
    if factors.shape == (head_dim // 2,) and np.all(np.isfinite(factors)) and factors.max() > 1:
        factor = float(str(factors.max()))
        found = replace(rope, scaling="llama3", factor=factor, low_factor=1.0, high_factor=4.0, original_context=8192)
        if np.allclose(_factors(found, head_dim), factors, rtol=1e-4):
            return found
    raise UsageError(f"{source}: {FACTORS} holds other factors than those of Llama 3; this kind of rotary positions is not supported")


def _factors(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """What each frequency is divided by (`low_factor` turns of the original context and fewer: all of `factor`)."""
    wavelengths = 2 * np.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = rope.original_context / wavelengths
    kept = np.clip((turns - rope.low_factor) / (rope.high_factor - rope.low_factor), 0, 1)
    return 1 / ((1 - kept) / rope.factor + kept)
