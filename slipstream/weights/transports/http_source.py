"""Chunks over HTTP/1.1, received straight into their place. Called by the threads of a fetcher.

The exchange is written out over the socket, because a client library would neither receive into given memory nor keep one deadline over
a whole answer: a peer that sends a byte now and then would hold it for ever.
"""

import io
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, parse_headers
from urllib.parse import urlsplit

from slipstream.core.errors import UsageError
from slipstream.weights.chunks import PatchKey
from slipstream.weights.manifest import MAX_MANIFEST_BYTES
from slipstream.weights.transports.http import PREFIX
from slipstream.weights.transports.resources import chunk_path, manifest_path, patch_path
from slipstream.weights.transports.source import Deadline, FaultKind, FetchFault, Landing

PIECE_BYTES = 1 << 20  # received and hashed at once
MAX_HEAD_BYTES = 16 << 10

_STATUS = {401: FaultKind.REFUSED, 403: FaultKind.REFUSED, 404: FaultKind.GONE, 410: FaultKind.GONE}


class HttpSource:
    """Implements `source.ChunkSource`; keeps connections for the next call."""

    def __init__(self, url: str, token: str, *, stall_s: float, tls: ssl.SSLContext | None = None) -> None:
        """`url` is http:// or https:// with a host; `tls` is how the latter is trusted. No byte for `stall_s` is a stall."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"weight source {url!r}: must be http://host:port or https://host:port")
        self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/") + PREFIX
        lines = [
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Accept-Encoding: identity",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        self._head = "".join(f"{line}\r\n" for line in lines)
        if not (self._path + self._head).isascii() or "\n" in token or "\r" in token:
            raise UsageError(f"weight source {url!r} and its token must be plain ASCII")
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._closed = False

    def manifest(self, lineage: int, version: int, deadline: Deadline) -> bytes:
        found = bytearray()

        def landing(size: int) -> Landing:
            if size > MAX_MANIFEST_BYTES:
                raise FetchFault(FaultKind.PROTOCOL, f"manifest of {size} bytes; at most {MAX_MANIFEST_BYTES} are read")
            found.extend(bytes(size))
            return Landing(memoryview(found))

        self._get(manifest_path(lineage, version), landing, deadline)
        return bytes(found)

    def chunk(self, hashed: str, landing: Landing, deadline: Deadline) -> None:
        self._get(chunk_path(hashed), lambda size: _fits(landing, size), deadline)

    def patch(self, key: PatchKey, landing: Landing, deadline: Deadline) -> None:
        self._get(patch_path(key), lambda size: _fits(landing, size), deadline)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for line in self._open:
                _shut(line)
            for line in self._idle:
                line.close()
            self._idle.clear()

    def _get(self, path: str, landing: Callable[[int], Landing], deadline: Deadline) -> None:
        """One exchange. A connection that was kept may have ended meanwhile, so then it is asked again over a new one."""
        line, kept = self._line(deadline)
        try:
            try:
                head = self._ask(line, path, deadline)
            except FetchFault as fault:
                if not kept or fault.kind is not FaultKind.UNREACHABLE:
                    raise
                self._drop(line)
                line = self._connect(deadline)
                head = self._ask(line, path, deadline)
            keep = self._answer(line, head, landing, deadline)
        except BaseException:
            self._drop(line)
            raise
        with self._lock:
            if keep and not self._closed:
                self._idle.append(line)
                return
        self._drop(line)

    def _line(self, deadline: Deadline) -> tuple[socket.socket, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        return self._connect(deadline), False

    def _connect(self, deadline: Deadline) -> socket.socket:
        try:
            line = socket.create_connection(self._address, timeout=min(self._stall_s, deadline.left_s()))
            if self._tls:
                line = self._tls.wrap_socket(line, server_hostname=self._address[0])
        except OSError as error:
            raise FetchFault(FaultKind.UNREACHABLE, f"no connection: {error}") from error
        with self._lock:
            self._open.add(line)
            if self._closed:
                _shut(line)
        return line

    def _drop(self, line: socket.socket) -> None:
        with self._lock:
            self._open.discard(line)
        line.close()

    def _ask(self, line: socket.socket, path: str, deadline: Deadline) -> bytes:
        """Everything up to the end of the head, and what came with it."""
        try:
            line.settimeout(min(self._stall_s, deadline.left_s()))
            line.sendall(f"GET {self._path}{path} HTTP/1.1\r\n{self._head}\r\n".encode("ascii"))
        except TimeoutError as error:
            raise FetchFault(FaultKind.STALLED, "the request was not taken") from error
        except OSError as error:
            raise FetchFault(FaultKind.UNREACHABLE, f"the connection broke: {error}") from error
        found, room = b"", memoryview(bytearray(MAX_HEAD_BYTES))
        while b"\r\n\r\n" not in found:
            if len(found) >= MAX_HEAD_BYTES:
                raise FetchFault(FaultKind.PROTOCOL, f"no head within {MAX_HEAD_BYTES} bytes")
            count = self._receive(line, room, deadline)
            if not count:
                raise FetchFault(FaultKind.TRUNCATED if found else FaultKind.UNREACHABLE, "the connection ended before an answer")
            found += room[:count]
        return found

    def _answer(self, line: socket.socket, head: bytes, landing: Callable[[int], Landing], deadline: Deadline) -> bool:
        """Bring the body in. Whether the connection can be kept."""
        end = head.index(b"\r\n\r\n") + 4
        status, length, keep = _parsed(head[:end])
        if status != 200:
            raise FetchFault(
                _STATUS.get(status, FaultKind.PROTOCOL), f"status {status}: {head[end : end + 200].decode(errors='replace').strip()}"
            )
        into = landing(length)
        into.write(head[end:])
        while into.left:
            count = self._receive(line, into.room(PIECE_BYTES), deadline)
            if not count:
                raise FetchFault(FaultKind.TRUNCATED, f"the connection ended {into.left} bytes early, of {length}")
            into.advance(count)
        return keep

    def _receive(self, line: socket.socket, room: memoryview, deadline: Deadline) -> int:
        line.settimeout(min(self._stall_s, deadline.left_s()))
        try:
            return line.recv_into(room)
        except TimeoutError as error:
            deadline.left_s()
            raise FetchFault(FaultKind.STALLED, f"no byte for {self._stall_s:.3g} s") from error
        except OSError:
            return 0  # a connection that was reset has ended


def _fits(landing: Landing, size: int) -> Landing:
    if size != landing.left:
        raise FetchFault(FaultKind.PROTOCOL, f"{size} bytes where the manifest says {landing.left}")
    return landing


def _parsed(head: bytes) -> tuple[int, int, bool]:
    """Status, bytes of the body, and whether the connection stays open."""
    first, _, rest = head.partition(b"\r\n")
    parts = first.split(b" ", 2)
    try:
        headers = parse_headers(io.BytesIO(rest))
        status, length = int(parts[1]), int(headers.get("Content-Length", "-1"))
    except (HTTPException, ValueError, IndexError) as error:
        raise FetchFault(FaultKind.PROTOCOL, f"not an answer of HTTP: {first[:80]!r}") from error
    if parts[0] not in (b"HTTP/1.1", b"HTTP/1.0") or (status == 200 and length < 0):
        raise FetchFault(FaultKind.PROTOCOL, f"not an answer of HTTP/1.1 with a length: {first[:80]!r}")
    return status, length, parts[0] == b"HTTP/1.1" and headers.get("Connection", "").lower() != "close"


def _shut(line: socket.socket) -> None:
    with suppress(OSError):  # it has ended already
        line.shutdown(socket.SHUT_RDWR)
