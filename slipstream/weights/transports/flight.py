"""Chunks over Arrow Flight: a server beside the HTTP routes, and a source with the same port. Called by learners, workers and fetchers.

A ticket is a path of `resources`; the answer is one column of bytes. Slower than HTTP on one machine (gRPC copies twice); for
clusters whose network lets only gRPC through.
"""

import hmac
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from slipstream.core.errors import UsageError
from slipstream.weights.chunks import ChunkStore, PatchKey
from slipstream.weights.manifest import MAX_MANIFEST_BYTES
from slipstream.weights.transports.resources import chunk_path, find, manifest_path, patch_path
from slipstream.weights.transports.source import Deadline, FaultKind, FetchFault, Landing

PIECE_BYTES = 1 << 20
_SCHEMA = pa.schema([("bytes", pa.uint8())])
_GONE = "not here, or not any more"  # Flight has no status of its own for it that reaches the client


class WeightFlight(flight.FlightServerBase):
    """Serves a store from the moment it is made until `shutdown`; an empty `token` lets everybody read. `port` says where."""

    def __init__(self, store: ChunkStore, token: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._store = store
        super().__init__(f"grpc://{host}:{port}", middleware={"token": _Gate(token)} if token else None)

    def do_get(self, context: Any, ticket: Any) -> Any:
        path = ticket.ticket.decode(errors="replace")
        data = find(self._store, path)
        if data is None:
            raise flight.FlightServerError(f"{path[:200]} is {_GONE}")
        return flight.GeneratorStream(_SCHEMA, _batches(memoryview(data)))


class _Gate(flight.ServerMiddlewareFactory):
    """Lets only those through who send the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        given = (headers.get("authorization") or [""])[0]
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("a bearer token is needed")


class FlightSource:
    """Implements `source.ChunkSource`."""

    def __init__(self, url: str, token: str) -> None:
        """`url` is grpc://host:port or grpc+tls://host:port."""
        try:
            self._client = flight.connect(url)
        except pa.ArrowInvalid as error:
            raise UsageError(f"weight source {url!r}: must be grpc://host:port or grpc+tls://host:port ({error})") from error
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []

    def manifest(self, lineage: int, version: int, deadline: Deadline) -> bytes:
        found = bytearray()
        for piece in self._get(manifest_path(lineage, version), deadline):
            found += piece
            if len(found) > MAX_MANIFEST_BYTES:
                raise FetchFault(FaultKind.PROTOCOL, f"a manifest of more than {MAX_MANIFEST_BYTES} bytes")
        return bytes(found)

    def chunk(self, hashed: str, landing: Landing, deadline: Deadline) -> None:
        self._fill(chunk_path(hashed), landing, deadline)

    def patch(self, key: PatchKey, landing: Landing, deadline: Deadline) -> None:
        self._fill(patch_path(key), landing, deadline)

    def close(self) -> None:
        self._client.close()

    def _fill(self, path: str, landing: Landing, deadline: Deadline) -> None:
        for piece in self._get(path, deadline):
            landing.write(piece)
        if landing.left:
            raise FetchFault(FaultKind.TRUNCATED, f"the stream ended {landing.left} bytes early")

    def _get(self, path: str, deadline: Deadline) -> Iterator[memoryview]:
        options = flight.FlightCallOptions(timeout=deadline.left_s(), headers=self._headers)
        try:
            reader = self._client.do_get(flight.Ticket(path.encode()), options)
            if reader.schema != _SCHEMA:
                raise FetchFault(FaultKind.PROTOCOL, f"a stream of {reader.schema} where bytes were expected")
            for batch in reader:
                column = batch.data.column(0)
                if len(column):
                    yield memoryview(column.buffers()[1]).cast("B")[column.offset : column.offset + len(column)]
        except (pa.ArrowException, OSError) as error:
            raise FetchFault(_kind(error), str(error).split(". Detail")[0][:300]) from error


def _kind(error: Exception) -> FaultKind:
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return FaultKind.REFUSED
    if isinstance(error, flight.FlightTimedOutError):
        return FaultKind.STALLED
    if isinstance(error, flight.FlightUnavailableError):
        return FaultKind.UNREACHABLE
    return FaultKind.GONE if _GONE in str(error) else FaultKind.PROTOCOL


def _batches(data: memoryview) -> Iterator[Any]:
    """Record batches over the bytes as they lie."""
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        yield pa.record_batch([pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])], schema=_SCHEMA)
