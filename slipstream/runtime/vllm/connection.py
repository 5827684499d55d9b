"""HTTP to one vLLM server from a thread of its own: calls that wait for their answer, and streams that deliver as they come. An actor.

The thread runs an event loop, so that hundreds of streams cost one thread. Called by `vllm.sampler`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import aiohttp

from slipstream.core.errors import RunFailed
from slipstream.runtime.vllm.wire import Json, error_text
from slipstream.runtime.worker import Worker

CONNECT_S = 10.0
BUSY_S = 0.2  # before a server that is full is asked again
GRACE_S = 5.0  # for the thread to pass on an answer, or the lack of one
FULL = (429, 503)

Deliver = Callable[["str | Busy | Ended"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for a call."""

    status: int
    content: Any  # parsed JSON, or the text where it is none

    @property
    def problem(self) -> str:
        """Why the server refused; empty where it did not."""
        return "" if self.status == 200 else f"{self.status}: {error_text(self.content)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The server is full and is asked again in a moment."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last that is delivered of a stream."""

    problem: str = ""  # empty: the server ended it


class Connection:
    """Usable by one thread at a time. `close` ends all streams."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop = asyncio.new_event_loop()
        self._worker = Worker(f"vllm {self.url}", self._loop.run_forever, self._loop.close)
        self._worker.start()
        self._session = self._wait(self._open(), CONNECT_S)

    def close(self) -> None:
        self._wait(self._shut(), CONNECT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._worker.join(CONNECT_S)

    def call(self, method: str, path: str, body: Json | None = None, *, deadline_s: float) -> Answer:
        """The server's answer, whatever it is. Raises RunFailed where there is none within the deadline."""
        return self._wait(self._call(method, path, body, deadline_s), deadline_s)

    def stream(self, path: str, body: Json, deliver: Deliver) -> Future[None]:
        """Post, and deliver each line of the answer in the connection's thread, an `Ended` last. Cancelling closes the stream silently."""
        return asyncio.run_coroutine_threadsafe(self._stream(path, body, deliver), self._loop)

    def _wait(self, work: Coroutine[Any, Any, Any], deadline_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(deadline_s + GRACE_S)

    async def _open(self) -> aiohttp.ClientSession:
        # A connection of its own for each request: a server may close an idle one just when it is used again.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)

    async def _shut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()

    async def _call(self, method: str, path: str, body: Json | None, deadline_s: float) -> Answer:
        timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_S)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=timeout) as response:
                return Answer(status=response.status, content=await _content(response))
        except TimeoutError as error:
            raise RunFailed(f"the vLLM server at {self.url} has not answered {method} {path} in {deadline_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RunFailed(f"the vLLM server at {self.url} cannot be asked for {method} {path}: {_cause(error)}") from error

    async def _stream(self, path: str, body: Json, deliver: Deliver) -> None:
        try:
            while busy := await self._streamed(path, body, deliver):
                deliver(Busy(reason=busy))
                await asyncio.sleep(BUSY_S)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            deliver(Ended(problem=_cause(error)))
        else:
            deliver(Ended())

    async def _streamed(self, path: str, body: Json, deliver: Deliver) -> str:
        """Deliver an answer line by line; or why the server is too full to give one."""
        async with self._session.post(self.url + path, json=body) as response:
            if response.status != 200:
                answer = Answer(status=response.status, content=await _content(response))
                if response.status in FULL:
                    return answer.problem
                raise ValueError(answer.problem)
            rest, done = b"", False
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, (line.strip().decode() for line in lines)):
                    done = line == "data: [DONE]"
                    deliver(line)
            if not done:
                raise ValueError("the stream broke off")
            return ""


async def _content(response: aiohttp.ClientResponse) -> Any:
    return await response.json() if response.content_type == "application/json" else await response.text()


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__
