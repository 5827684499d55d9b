"""Tiny models of every family for tests: the golden ones, read by the product's own reader."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from slipstream.models.parameters import Params
from slipstream.models.spec import ModelSpec
from slipstream.weights.files import read_params
from slipstream.weights.hf_config import read_spec
from tests.goldens.read import write_directory


@cache
def golden_model(family: str) -> tuple[ModelSpec, Params]:
    """Spec and float32 parameters of a golden model."""
    with TemporaryDirectory() as folder:
        write_directory(family, Path(folder))
        spec = read_spec(Path(folder))
        return spec, read_params(Path(folder), spec)


def packed_row(segments: Sequence[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, segment ids and positions int32 [1, width] of one row that holds the segments, padded with zeros."""
    tokens, ids, positions = (np.zeros((1, width), np.int32) for _ in range(3))
    start = 0
    for index, segment in enumerate(segments):
        place = slice(start, start := start + len(segment))
        tokens[0, place], ids[0, place], positions[0, place] = segment, index + 1, np.arange(len(segment))
    return tokens, ids, positions
