"""Counter-based randomness: every draw is a function of (run seed, purpose, place), never of time, thread or order.

A *place* is whatever names the draw: a prompt id and sample index, an epoch, a parameter's name. Host-side draws use
`generator`; the engine takes `key_words` to its device and folds the token position in there.
"""

import hashlib

import numpy as np

Place = str | int


def key_words(seed: int, purpose: str, *place: Place) -> tuple[int, int]:
    """Two 32-bit words, well mixed, that name one independent stream. Different arguments give unrelated words.

    Each part is length-prefixed, so that ("ab", "c") and ("a", "bc") differ, and its type counts, so that 1 and "1" do; a numpy
    integer names the same place as the plain one.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, purpose, *place):
        text = (f"str:{part}" if isinstance(part, str) else f"int:{int(part)}").encode()
        digest.update(len(text).to_bytes(4, "little"))
        digest.update(text)
    value = int.from_bytes(digest.digest(), "little")
    return value & 0xFFFFFFFF, value >> 32


def stream_seed(seed: int, purpose: str, *place: Place) -> int:
    """One 64-bit integer that names the stream; stored as a sample's seed."""
    low, high = key_words(seed, purpose, *place)
    return low | (high << 32)


def generator(seed: int, purpose: str, *place: Place) -> np.random.Generator:
    """A numpy generator (Philox, counter-based) at the start of the named stream."""
    return np.random.Generator(np.random.Philox(key=stream_seed(seed, purpose, *place)))
