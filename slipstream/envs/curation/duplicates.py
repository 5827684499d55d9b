"""Texts that stand in a set twice: the same text, or nearly (similar by their runs of five words and signs).

Similarity is Jaccard's; candidates come from bands of MinHash (Broder 1997) and are compared exactly, so nothing is called a
duplicate that is not. A pair at the default similarity of 0.8 is missed less than once in ten million, one at 0.5 once in eight.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.rng import generator
from slipstream.envs.curation.words import grams, same_text

SHINGLE = 5  # words and signs: 3+4 is not 3-4
BANDS, ROWS = 32, 4
SIMILARITY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Of which earlier text one is a duplicate."""

    of: int  # place of the text that is kept
    similarity: float  # 1.0 for the same text


def find_duplicates(texts: Sequence[str], similarity: float = SIMILARITY) -> dict[int, Duplicate]:
    """Places of texts that repeat an earlier one that is kept. `similarity` 1 finds the same texts only."""
    found: dict[int, Duplicate] = {}
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        kept = first.setdefault(same_text(text), place)
        if kept != place:
            found[place] = Duplicate(of=kept, similarity=1.0)
    if similarity < 1.0:
        found |= _near([(place, _shingles(texts[place])) for place in first.values()], similarity)
    return found


def _near(shingled: Sequence[tuple[int, frozenset[int]]], similarity: float) -> dict[int, Duplicate]:
    found: dict[int, Duplicate] = {}
    buckets: dict[tuple[int, bytes], list[tuple[int, frozenset[int]]]] = {}
    multipliers, offsets = _hash_functions()
    for place, shingles in shingled:
        if not shingles:
            continue
        values = np.fromiter(shingles, np.uint64, len(shingles))
        signature = (values[:, None] * multipliers[None, :] + offsets[None, :]).min(axis=0).reshape(BANDS, ROWS)
        keys = [(band, signature[band].tobytes()) for band in range(BANDS)]
        others = {other: theirs for key in keys for other, theirs in buckets.get(key, ())}
        likeness = {other: len(shingles & theirs) / len(shingles | theirs) for other, theirs in others.items()}
        best = max(likeness, key=lambda other: (likeness[other], -other), default=None)
        if best is not None and likeness[best] >= similarity:
            found[place] = Duplicate(of=best, similarity=likeness[best])
        else:
            for key in keys:
                buckets.setdefault(key, []).append((place, shingles))
    return found


def _shingles(text: str) -> frozenset[int]:
    return frozenset(zlib.crc32(" ".join(gram).encode()) for gram in grams(same_text(text).split(" "), SHINGLE))


def _hash_functions() -> tuple[np.ndarray, np.ndarray]:
    """Odd multipliers and offsets of as many multiply-shift hashes (modulo 2^64) as there are rows in all bands."""
    rng = generator(0, "minhash")
    draws = rng.integers(0, 1 << 63, (2, BANDS * ROWS), dtype=np.uint64)
    return draws[0] | np.uint64(1), draws[1]
