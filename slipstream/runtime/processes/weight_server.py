"""Serves the weights that a process holds to the others: an HTTP server in a thread of its own. Called by `runtime.processes`.

A learner serves what it publishes, a sampler what it has fetched.
"""

import asyncio
import socket
import ssl
from urllib.parse import urlsplit

from aiohttp import web

from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.worker import Worker
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.transports.http import weight_routes

END_S = 30.0  # for answers in progress


class WeightServer:
    """Has its address from construction on, and serves from `start` to `close`. `url` is where others reach it."""

    def __init__(self, *, host: str, port: int, token: str | None, tls: ssl.SSLContext | None) -> None:
        """Raises UsageError when the address cannot be had. `port` 0 takes any free one."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=256)
        except (OSError, OverflowError) as error:
            raise UsageError(f"weights cannot be served at {host} port {port}: {error}") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{self._listener.getsockname()[1]}"
        self._token, self._tls = token or "", tls
        self._loop = asyncio.new_event_loop()
        self._worker: Worker | None = None

    def start(self, store: ChunkStore) -> None:
        """Serve what the store holds, whenever it is asked."""
        self._worker = Worker("weights-serve", lambda: self._run(store), lambda: None)
        self._worker.start()

    def check(self) -> None:
        """Raise what the server died of."""
        if self._worker is not None:
            self._worker.check()

    def close(self) -> None:
        if self._worker is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if not self._worker.join(END_S):
                raise RunFailed(f"the server of weights at {self.url} did not end within {END_S:.0f} s")
        else:
            self._loop.close()
        self._listener.close()

    def _run(self, store: ChunkStore) -> None:
        app = web.Application()
        app.router.add_routes(weight_routes(store, self._token))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(runner.setup())
            self._loop.run_until_complete(web.SockSite(runner, self._listener, ssl_context=self._tls).start())
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.close()


def own_address(coordinator_url: str) -> str:
    """The address of this machine on the way to the coordinator: where its workers can reach this process."""
    parts = urlsplit(coordinator_url)
    assert parts.hostname is not None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise UsageError(f"--join {coordinator_url}: {error}") from error
