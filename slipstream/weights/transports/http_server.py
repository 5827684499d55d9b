"""An HTTP server that does nothing but serve a store of chunks, in a thread of its own. For processes that have no other server."""

import asyncio
import threading
from concurrent.futures import Future

from aiohttp import web

from slipstream.weights.chunks import ChunkStore
from slipstream.weights.transports.http import weight_routes

CLOSING_S = 10.0  # for answers in progress


class WeightServer:
    """Serves from when it is made until `close`. Raises OSError where the address cannot be had."""

    def __init__(self, store: ChunkStore, token: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any that is free; `url` says which."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="weights-http", daemon=True)
        self._thread.start()
        app = web.Application()
        app.add_routes(weight_routes(store, token))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSING_S)
        try:
            self.port = self._run(self._start(host, port)).result()
        except OSError:
            self.close()
            raise
        self.url = f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stop listening, let answers in progress end, end the thread."""
        self._run(self._runner.cleanup()).result(2 * CLOSING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING_S)
        self._loop.close()

    def _run(self, work: object) -> "Future[int]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)  # pyright: ignore[reportArgumentType]

    async def _start(self, host: str, port: int) -> int:
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return self._runner.addresses[0][1]
