"""Partial tokens of running samples as bytes and back. Pure. They may be lost at any time without harm, so damage is loss."""

import hashlib
import struct

import numpy as np

from slipstream.core.records import Partial

_HEAD = struct.Struct("<IqI")  # tokens, ticket, sample
_DIGEST_BYTES = 16


def partial_to_bytes(partial: Partial) -> bytes:
    """Digest, head, and the three arrays, little-endian."""
    head = _HEAD.pack(len(partial.completion_ids), partial.ticket_index, partial.sample)
    arrays = (partial.completion_ids.astype("<i4"), partial.logprobs.astype("<f4"), partial.versions.astype("<i4"))
    body = b"".join((head, *(array.tobytes() for array in arrays)))
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def partial_from_bytes(data: bytes) -> Partial | None:
    """What `partial_to_bytes` wrote, or None where these are other bytes."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest or len(body) < _HEAD.size:
        return None
    tokens, ticket, sample = _HEAD.unpack_from(body)
    ids, logprobs, versions = (
        np.frombuffer(body, dtype=dtype, count=tokens, offset=_HEAD.size + 4 * tokens * place)
        for place, dtype in enumerate(("<i4", "<f4", "<i4"))
    )
    return Partial(ticket_index=ticket, sample=sample, completion_ids=ids, logprobs=logprobs, versions=versions)
