"""Routes of an aiohttp application that serve a store of chunks: `/weights/` and a path of `resources`. Mounted by learners and workers.

Chunks are written from memory as they lie. Over loopback that is as fast as sendfile from a file in memory, which would first have to
be written.
"""

import asyncio
import hmac

from aiohttp import web

from slipstream.weights.chunks import ChunkStore
from slipstream.weights.transports.resources import find

PREFIX = "/weights/"
PIECE_BYTES = 1 << 20  # written at once; what the socket does not take is copied


def weight_routes(store: ChunkStore, token: str, *, stall_s: float = 60.0) -> list[web.RouteDef]:
    """GET routes over what `store` holds when it is asked. An empty `token` lets everybody read; a client that takes no byte for
    `stall_s` is cut off."""
    expected = f"Bearer {token}".encode()

    async def get(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if token and not hmac.compare_digest(given, expected):
            return web.Response(status=401, text="a bearer token is needed\n")
        path = request.match_info["path"]
        data = find(store, path)
        if data is None:
            return web.Response(status=404, text=f"{path[:200]} is not here, or not any more\n")
        return await _send(request, memoryview(data), stall_s)

    return [web.get(PREFIX + "{path:.+}", get, allow_head=False)]


async def _send(request: web.Request, data: memoryview, stall_s: float) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = len(data)
    try:
        await response.prepare(request)
        for start in range(0, len(data), PIECE_BYTES):
            async with asyncio.timeout(stall_s):
                await response.write(data[start : start + PIECE_BYTES])
        async with asyncio.timeout(stall_s):
            await response.write_eof()
    except TimeoutError:
        if request.transport:
            request.transport.abort()
    return response
