"""Where a fetcher gets chunks from, whatever the transport: the port, what can go wrong, and where bytes land.

A source only moves bytes. Whether they are the right ones is checked by the fetcher, by their hash.
"""

from enum import StrEnum
from typing import Protocol

from slipstream.core.clock import Clock
from slipstream.weights.chunks import PatchKey
from slipstream.weights.digest import hasher


class FaultKind(StrEnum):
    """Why a source did not deliver."""

    UNREACHABLE = "unreachable"  # no connection, or it broke before an answer
    REFUSED = "refused"  # the token was not accepted
    GONE = "gone"  # the source has no such thing, or not any more
    STALLED = "stalled"  # no byte for too long, or too few
    TRUNCATED = "truncated"  # the connection broke within the answer
    CORRUPT = "corrupt"  # the bytes have another hash
    PROTOCOL = "protocol"  # an answer that makes no sense


class FetchFault(Exception):
    """One source failed to deliver one thing; another may."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Landing:
    """Memory that is filled from its start, and hashed while what came last is still in the processor's cache."""

    def __init__(self, into: memoryview) -> None:
        self._into, self._filled, self._hash = into, 0, hasher()

    def room(self, most: int) -> memoryview:
        """Where the next bytes go, at most so many."""
        return self._into[self._filled : self._filled + most]

    @property
    def left(self) -> int:
        return len(self._into) - self._filled

    def advance(self, count: int) -> None:
        """So many bytes were written to `room`."""
        self._hash.update(self._into[self._filled : self._filled + count])
        self._filled += count

    def write(self, data: memoryview | bytes) -> None:
        """The next bytes. Raises FetchFault where they are too many."""
        if len(data) > self.left:
            raise FetchFault(FaultKind.PROTOCOL, f"{len(data) - self.left} bytes too many for {len(self._into)}")
        self.room(len(data))[:] = data
        self.advance(len(data))

    def hash(self) -> str:
        """Of all bytes so far, as `digest.chunk_hash`."""
        return self._hash.hexdigest()


class Deadline:
    """A moment after which nobody waits any longer."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self.seconds, self._at_s = clock, seconds, clock.now_s() + seconds

    def left_s(self) -> float:
        """Raises FetchFault once it has passed."""
        left = self._at_s - self._clock.now_s()
        if left <= 0:
            raise FetchFault(FaultKind.STALLED, f"not done within {self.seconds:.3g} s")
        return left


class ChunkSource(Protocol):
    """A store of chunks somewhere else. Called from several threads at once; every call raises FetchFault and ends by its deadline."""

    def manifest(self, lineage: int, version: int, deadline: Deadline) -> bytes:
        """As `manifest.encode_manifest` makes it; for `decode_manifest` to judge."""
        ...

    def chunk(self, hashed: str, landing: Landing, deadline: Deadline) -> None:
        """Fill the landing."""
        ...

    def patch(self, key: PatchKey, landing: Landing, deadline: Deadline) -> None:
        """Fill the landing."""
        ...

    def close(self) -> None:
        """Calls in progress fail soon."""
        ...
