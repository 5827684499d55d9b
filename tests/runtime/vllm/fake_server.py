"""A vLLM server that draws from a table, in a thread of its own, and says what a real one was recorded to say.

Weights are read from the directory that a reload names: the table is a function of their embedding. So another version draws
otherwise, and a client that writes or reloads the wrong thing, or mixes versions up, is found out.
"""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from safetensors.numpy import load_file

from tests.loop.table_sampler import NEVER, TableSampler, log_softmax, table

NAME, CONTEXT, MOST_AT_ONCE = "policy", 64, 64
PATIENCE_S = 60.0

Json = dict[str, Any]


def table_of(embedding: np.ndarray) -> np.ndarray:
    """The logits that a model with this embedding is taken to have."""
    digest = hashlib.blake2b(np.ascontiguousarray(embedding, np.float32).tobytes(), digest_size=4).digest()
    return table(int.from_bytes(digest, "little"))


class Arithmetic(TableSampler):
    """How a request's next token is drawn. Padding rows are drawn like any other, as by the real one."""

    def model(self, ids: Sequence[int]) -> np.ndarray:
        """Logits, before anything is done to them."""
        return self.table[len(ids) % len(self.table), ids[-1]]

    def next(self, asked: Json, ids: Sequence[int], drawn: int) -> np.ndarray:
        """The log-probs that the `drawn`-th token is drawn from."""
        logits = self.model(ids).copy()
        for token, value in (asked.get("logit_bias") or {}).items():
            logits[int(token)] += value
        if drawn < asked.get("min_tokens", 0):
            logits[asked["stop_token_ids"]] = NEVER
        found = self.distribution(logits, asked["temperature"])
        if asked["top_k"] > 0:
            found = log_softmax(np.where(found >= np.sort(found)[-asked["top_k"]], found, NEVER))
        return found

    def chosen(self, asked: Json, log_probs: np.ndarray, drawn: int) -> int:
        """A generator of the request's own gives one number a token; like torch's on a CPU it takes 32 bits of the seed."""
        if asked["temperature"] == 0:
            return int(log_probs.argmax())
        return self.by_chance(log_probs, self.uniform(asked["seed"] % 2**32, drawn))

    def told(self, asked: Json, log_probs: np.ndarray, ids: Sequence[int], token: int) -> float:
        return float(log_probs[token])


class Raw(Arithmetic):
    """Tells the model's own log-probs: the server's default."""

    def told(self, asked: Json, log_probs: np.ndarray, ids: Sequence[int], token: int) -> float:
        return float(log_softmax(self.model(ids))[token])


class TopOne(Arithmetic):
    """Tells the likeliest token's log-prob in place of the drawn one's, where only one is asked for."""

    def told(self, asked: Json, log_probs: np.ndarray, ids: Sequence[int], token: int) -> float:
        return float(log_probs[token] if asked["logprobs"] else log_probs.max())


@dataclass(slots=True, eq=False)
class _Stream:
    drawn: list[int] = field(default_factory=list[int])
    aborted: bool = False


class FakeServer:
    """Settings are changed by tests while nothing runs, but for `hold`."""

    def __init__(self, arithmetic: type[Arithmetic]) -> None:
        self.arithmetic = arithmetic(table(0))
        self.developer = True  # has pauses and reloads
        self.busy = 0  # so many requests are refused as too many
        self.late = False  # requests without tokens are not found by a pause, as if they came just after it
        self.words = ""  # sent in place of the first line of tokens; "break": the connection ends
        self.own_head = False  # of the model it was started with
        self.hold: int | None = None  # each request waits when it has so many tokens
        self.asked: list[Json] = []
        self.most_at_once = 0
        self.faults: list[str] = []
        self._streams: list[_Stream] = []
        self._paused = False

    # ---- for tests, from their thread

    def until(self, holds: Callable[[], bool]) -> None:
        asyncio.run_coroutine_threadsafe(self._until(holds), self._loop).result(PATIENCE_S)

    def until_held(self, count: int) -> None:
        self.until(lambda: sum(len(stream.drawn) == self.hold for stream in self._streams) == count)

    def until_idle(self) -> None:
        self.until(lambda: not self._streams)

    def go(self) -> None:
        self.hold = None
        asyncio.run_coroutine_threadsafe(self._tell(), self._loop).result(PATIENCE_S)

    def start(self) -> str:
        """The URL."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(PATIENCE_S)

    def stop(self) -> None:
        """Dies, with all its connections."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # ---- the server

    async def _start(self) -> str:
        self._change = asyncio.Condition()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completion)
        if self.developer:
            app.router.add_get("/server_info", self._info)
            for path in ("/pause", "/resume", "/abort_requests", "/collective_rpc", "/weight_checker"):
                app.router.add_post(path, getattr(self, path.replace("/", "_")))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._change:
            await self._change.wait_for(holds)

    async def _tell(self) -> None:
        async with self._change:
            self._change.notify_all()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model", "max_model_len": CONTEXT}]})

    async def _info(self, request: web.Request) -> web.Response:
        config = {
            "model_config": {"dtype": "torch.float32"},
            "device_config": {"device": "cpu"},
            "scheduler_config": {"max_num_seqs": MOST_AT_ONCE},
        }
        return web.json_response({"vllm_config": config})

    async def _pause(self, request: web.Request) -> web.Response:
        self._paused = True
        if request.query["mode"] == "abort":
            for stream in self._streams:
                stream.aborted = bool(stream.drawn) or not self.late
        await self._tell()
        return web.json_response({"status": "paused"})

    async def _abort_requests(self, request: web.Request) -> web.Response:
        for stream in self._streams:
            stream.aborted = True
        await self._tell()
        return web.json_response({"status": "aborted", "aborted": len(self._streams)})

    async def _resume(self, request: web.Request) -> web.Response:
        self._paused = False
        await self._tell()
        return web.json_response({"status": "resumed"})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        sent = await request.json()
        path = Path(sent["kwargs"]["weights_path"]) / "model.safetensors"
        if sent["method"] != "reload_weights" or not path.exists():
            return _refusal(500, "InternalServerError", f"Call to collective_rpc method failed: {sent['kwargs']['weights_path']}")
        if not self._paused or self._streams:
            self.faults.append("reloaded while requests ran")
        self.arithmetic.table = table_of(load_file(path)["model.embed_tokens.weight"])
        return web.json_response({"results": [None]})

    async def _weight_checker(self, request: web.Request) -> web.Response:
        names = ["model.embed_tokens.weight", *["lm_head.weight"] * self.own_head]
        return web.json_response({"checksums": {f"dp0:pp0:pcp0:tp0:{name}": "00" for name in names}})

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        if asked["model"] != NAME:
            return _refusal(404, "NotFoundError", f"The model `{asked['model']}` does not exist. Valid aliases: {NAME}.")
        if self.busy:
            self.busy -= 1
            return _refusal(503, "ServiceUnavailableError", "too many requests wait")
        if len(asked["prompt"]) + asked["max_tokens"] > CONTEXT:
            return _refusal(400, "BadRequestError", f"This model's maximum context length is {CONTEXT} tokens.")
        if not asked.get("stream"):
            choice = self._choice(asked, asked["prompt"], 0) | {"token_ids": None}
            return web.json_response({"id": "cmpl-0", "object": "text_completion", "model": NAME, "choices": [choice]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        stream = _Stream()
        self._streams.append(stream)
        self.most_at_once = max(self.most_at_once, len(self._streams))
        try:
            await self._stream(asked, stream, response)
        finally:
            self._streams.remove(stream)
            await self._tell()
        return response

    async def _stream(self, asked: Json, stream: _Stream, response: web.StreamResponse) -> None:
        def may_draw() -> bool:
            return stream.aborted or (not self._paused and (self.hold is None or len(stream.drawn) < self.hold))

        finish = None
        while finish is None:
            await self._tell()
            await self._until(may_draw)
            if stream.aborted and not stream.drawn:
                break  # as recorded: then there is no word of it but the end
            choice = self._choice(asked, [*asked["prompt"], *stream.drawn], len(stream.drawn))
            choice["prompt_token_ids"] = None if stream.drawn else asked["prompt"]
            stream.drawn += choice["token_ids"]
            if stream.aborted:  # a step was under way: its token comes after the pause was answered
                choice["finish_reason"] = "abort"
            finish = choice["finish_reason"]
            line = json.dumps({"id": "cmpl-0", "object": "text_completion", "model": NAME, "choices": [choice]})
            if self.words == "break":
                assert response._req is not None
                assert response._req.transport is not None
                response._req.transport.abort()
                return
            await response.write(f"data: {self.words or line}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")

    def _choice(self, asked: Json, ids: Sequence[int], drawn: int) -> Json:
        log_probs = self.arithmetic.next(asked, ids, drawn)
        token = self.arithmetic.chosen(asked, log_probs, drawn)
        likeliest = [token, *(int(one) for one in np.argsort(-log_probs)[: asked["logprobs"]] if one != token)]
        tops = {f"token_id:{one}": self.arithmetic.told(asked, log_probs, ids, one) for one in likeliest}
        stopped = token in asked.get("stop_token_ids", ())
        return {
            "index": 0,
            "text": "",
            "logprobs": {
                "text_offset": [0],
                "token_logprobs": [tops[f"token_id:{token}"]],
                "tokens": [f"token_id:{token}"],
                "top_logprobs": [tops],
            },
            "finish_reason": "stop" if stopped else "length" if drawn + 1 == asked["max_tokens"] else None,
            "stop_reason": token if stopped else None,
            "prompt_token_ids": None,
            "token_ids": [token],
        }


def _refusal(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status)


@contextmanager
def faking(arithmetic: type[Arithmetic] = Arithmetic, *, developer: bool = True) -> Iterator[tuple[FakeServer, str]]:
    """A server and its URL."""
    server = FakeServer(arithmetic)
    server.developer = developer
    url = server.start()
    try:
        yield server, url
    finally:
        server.close()
    assert not server.faults
