"""A TCP proxy that damages what passes through it, when told to. An actor: one thread with an event loop.

Each route is a port of its own in front of one server, so that one worker's way to one other can be hurt. Where exactly a connection is
hurt is drawn from a seed. Called by `chaos.running` and by tests.
"""

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.runtime.worker import Worker

PIECE_BYTES = 64 << 10
CALL_S = 10.0  # for the thread to do what it is told
_ABORT = struct.pack("ii", 1, 0)  # closing sends RST, and what is not sent yet is thrown away
_HEAD_END = b"\r\n\r\n"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that has happened to a connection."""

    time_s: float  # time.monotonic
    route: str
    kind: str  # cut | corrupt | half_open | delay
    detail: str


@dataclass(slots=True, kw_only=True)
class _Route:
    name: str
    target: tuple[str, int]
    port: int
    server: asyncio.Server
    armed: list[str] = field(default_factory=list[str])  # for the next bytes of an answer: cut, corrupt
    dead_until_s: float = 0.0  # whatever is connected before then is half-open
    latency_s: float  # of every piece, always
    delay_s: float = 0.0  # of every piece, besides
    links: set["_Link"] = field(default_factory=set["_Link"])


class _Link:
    """One connection and its other half."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter | None = None) -> None:
        self.near, self.far = near, far
        self.dead = False  # nothing gets through any more
        self.ends = False  # cut after what is written
        self.good = False  # the present answer has status 200

    def abort(self) -> None:
        for writer in (self.near, self.far):
            if writer is not None:
                line: socket.socket | None = writer.get_extra_info("socket")
                if line is not None and line.fileno() >= 0:
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                writer.transport.abort()


class Proxy:
    """Passes everything through until told otherwise. All calls may come from any thread."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._routes: dict[str, _Route] = {}
        self._strikes: list[Strike] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._worker = Worker("proxy", self._run, lambda: None)
        self._worker.start()

    def route(self, name: str, port: int, host: str = "127.0.0.1", latency_s: float = 0.0) -> int:
        """A new way to a server, which need not be there yet; the port to connect to instead. `latency_s`: of every piece."""
        return self._call(self._open(name, (host, port), latency_s))

    def cut(self, name: str) -> None:
        """The next answer on the route ends in its middle, with a reset to both sides."""
        self._do(lambda: self._routes[name].armed.append("cut"))

    def corrupt(self, name: str) -> None:
        """One bit of the next answer's body on the route is turned over."""
        self._do(lambda: self._routes[name].armed.append("corrupt"))

    def disarm(self, name: str) -> None:
        """What has found nothing to hurt so far will not."""
        self._do(lambda: self._routes[name].armed.clear())

    def half_open(self, name: str, seconds: float) -> None:
        """The route's connections, and those that come within the time, stay open, and nothing gets through any of them again."""
        self._do(lambda: self._kill(self._routes[name], seconds))

    def delay(self, name: str, seconds: float) -> None:
        """Every piece takes so much longer from now on than the route's latency; 0: no longer."""
        self._do(lambda: self._slow(self._routes[name], seconds))

    def strikes(self) -> list[Strike]:
        """All faults so far, in order."""
        return self._do(lambda: list(self._strikes))

    def close(self) -> None:
        """Reset every connection and end the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._worker.join(CALL_S)
        self._worker.check()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def _do(self, work: Callable[[], Result]) -> Result:
        async def done() -> Result:
            return work()

        return self._call(done())

    async def _open(self, name: str, target: tuple[str, int], latency_s: float) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(self._routes[name], reader, writer)
            except asyncio.CancelledError:
                return  # the proxy is closed
            finally:
                self._tasks.discard(task)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self._routes[name] = _Route(name=name, target=target, port=port, server=server, latency_s=latency_s)
        return port

    async def _end(self) -> None:
        for route in self._routes.values():
            route.server.close()
            for link in route.links:
                link.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _strike(self, route: _Route, kind: str, detail: str) -> None:
        self._strikes.append(Strike(time_s=time.monotonic(), route=route.name, kind=kind, detail=detail))

    def _kill(self, route: _Route, seconds: float) -> None:
        route.dead_until_s = max(route.dead_until_s, time.monotonic() + seconds)
        for link in route.links:
            link.dead = True
        self._strike(route, "half_open", f"{len(route.links)} connections, and all that came within {seconds:.1f} s")

    def _slow(self, route: _Route, seconds: float) -> None:
        route.delay_s = seconds
        if seconds:
            self._strike(route, "delay", f"{seconds:g} s a piece")

    async def _serve(self, route: _Route, near: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        link = _Link(writer)
        route.links.add(link)
        try:
            if time.monotonic() < route.dead_until_s:
                link.dead = True
                while await near.read(PIECE_BYTES):
                    pass
                return
            far, link.far = await asyncio.open_connection(*route.target)
            await asyncio.gather(self._pump(route, link, near, link.far), self._pump(route, link, far, writer))
        except OSError:
            pass  # the server is not there, or a side has reset: so does the other
        finally:
            route.links.discard(link)
            link.abort()

    async def _pump(self, route: _Route, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end."""
        answers = writer is link.near
        while data := await reader.read(PIECE_BYTES):
            if late_s := route.latency_s + route.delay_s:
                await asyncio.sleep(late_s)
            if link.dead:
                continue
            if answers and route.armed:
                data = self._hurt(route, link, data)
            writer.write(data)
            await writer.drain()
            if link.ends:
                link.abort()
                return
        if not link.dead:
            with contextlib.suppress(OSError):
                writer.write_eof()

    def _hurt(self, route: _Route, link: _Link, data: bytes) -> bytes:
        """The piece of an answer as it goes on, if it has some of a body; only of a good one, whose body is what was asked for."""
        if data.startswith(b"HTTP/"):
            link.good, start = data.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"200"], data.find(_HEAD_END) + len(_HEAD_END)
        else:
            start = 0
        if not link.good or start >= len(data):
            return data
        kind, at = route.armed.pop(0), self._rng.randrange(start, len(data))
        self._strike(route, kind, f"byte {at - start} of {len(data) - start}")
        if kind == "cut":
            link.ends = True
            return data[:at]
        return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]
