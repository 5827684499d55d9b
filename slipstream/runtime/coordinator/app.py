"""The coordinator's HTTP side: routes, authorisation, refusals as one JSON object, long polls. Called by `coordinator.server`.

Everything that touches the ledger runs in one thread of its own, so the event loop never waits for the disk, and nobody else
changes the ledger: a long poll looks again whenever that thread has changed it.
"""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from slipstream.core.errors import RolloutRefused, RunFailed, StaleEpoch, TransitionError
from slipstream.runtime.coordinator import figures
from slipstream.runtime.coordinator.desk import Desk
from slipstream.runtime.coordinator.long_poll import long_poll
from slipstream.runtime.coordinator.messages import (
    FRAMED,
    SEQUENCE_HEADER,
    TERM_HEADER,
    AnyMessage,
    Begin,
    Call,
    Claim,
    Join,
    MessageError,
    Note,
    Prove,
    Publish,
    Ratios,
    Renew,
    Report,
    SaveProgress,
    Step,
    Submit,
    Wanted,
    Watch,
    cut_rollouts,
    frame_batch,
    read_message,
    ticket_to_json,
    unframe,
)
from slipstream.runtime.coordinator.verdict_desk import VerdictDesk
from slipstream.runtime.http_requests import bears, http_words

MAX_BODY_BYTES = 64 << 20
ASK_AGAIN_S = 0.5  # when nothing can be claimed and the worker is not told of a change before
_BEARER = "Authorization: Bearer TOKEN"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Result = TypeVar("Result")


class App:
    """The desk behind HTTP. `failure` is what ended it: a ledger that cannot be written any more."""

    def __init__(self, desk: Desk, token: str | None, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._desk, self._token, self._max_body_bytes = desk, token, max_body_bytes
        self._thread = ThreadPoolExecutor(1, "ledger")
        self.verdicts = VerdictDesk(desk)
        self._change = asyncio.Event()
        self._seen = -1
        self.failure: RunFailed | None = None
        self.over = asyncio.Event()  # set by a failure

    def application(self) -> web.Application:
        """To be run with `handler_cancellation`, so that a long poll ends when its worker leaves."""
        made = web.Application(middlewares=[self._middleware()], client_max_size=self._max_body_bytes)
        desk = self._desk
        self._route(made, "join", Join, lambda message: desk.join(message).model_dump())
        self._route(made, "renew", Renew, lambda message: asdict(desk.renew(message)))
        self._route(made, "leave", Call, desk.leave)
        self._route(made, "wanted", Wanted, lambda message: {"version": desk.wanted(message)})
        self._route(made, "progress", SaveProgress, desk.save_progress)
        self._route(made, "commit", Step, lambda message: desk.commit(message).model_dump())
        self._route(made, "begin", Begin, lambda message: desk.begin(message).model_dump())
        self._route(made, "publish", Publish, desk.publish)
        self._route(made, "prove", Prove, desk.prove)
        self._route(made, "ratios", Ratios, desk.ratios)
        self._route(made, "sync", Call, desk.sync)
        self._route(made, "forget", Step, desk.forget)
        self._route(made, "events", Report, desk.report)
        self._route(made, "note", Note, desk.note)
        for name, handler in (("claim", self._claim), ("submit", self._submit), ("batch", self._batch), ("watch", self._watch)):
            made.router.add_post(f"/v1/{name}", handler)
        made.router.add_routes(self.verdicts.routes())
        made.router.add_get("/health", self._health)
        made.router.add_get("/metrics", self._metrics)
        return made

    async def call(self, work: Callable[[], Result]) -> Result:
        """`work` in the ledger's thread; whoever waits for a change is told of one."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RunFailed as error:
            self.failure = error
            self.over.set()
            raise
        finally:
            self.verdicts.look()
            if self._desk.sequence != self._seen:
                self._seen = self._desk.sequence
                self.wake()

    def wake(self) -> None:
        """Let all long polls look again."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    def end_polls(self) -> None:
        """Let all long polls end; the desk is closing."""
        self.wake()
        self.verdicts.wake()

    async def close(self) -> None:
        """Nothing touches the ledger after this."""
        await asyncio.to_thread(self._thread.shutdown)

    def _route(self, made: web.Application, name: str, kind: type[AnyMessage], act: Callable[[AnyMessage], dict[str, Any] | None]) -> None:
        async def handle(request: web.Request) -> web.Response:
            message = read_message(kind, await request.read())
            return web.json_response(await self.call(partial(act, message)) or {})

        made.router.add_post(f"/v1/{name}", handle)

    async def _claim(self, request: web.Request) -> web.Response:
        message = read_message(Claim, await request.read())
        tickets = await self.call(partial(self._desk.claim, message))
        if not tickets:
            return web.Response(status=204, headers={"Retry-After": f"{ASK_AGAIN_S:g}"})
        return web.json_response({"tickets": [ticket_to_json(ticket) for ticket in tickets]})

    async def _submit(self, request: web.Request) -> web.Response:
        head, data = unframe(await request.read())
        message = read_message(Submit, head)

        def act() -> list[str]:
            return [str(receipt) for receipt in self._desk.submit(message, cut_rollouts(message.sizes, data))]

        return web.json_response({"receipts": await self.call(act)})

    async def _batch(self, request: web.Request) -> web.Response:
        message = read_message(Step, await request.read())

        def act() -> bytes | None:
            batch = self._desk.batch(message)
            return None if batch is None else frame_batch(batch)

        body = await self._until(act, message.wait_s)
        if body is None:
            return web.Response(status=204, headers={SEQUENCE_HEADER: str(self._desk.sequence)})
        return web.Response(body=body, content_type=FRAMED)

    async def _watch(self, request: web.Request) -> web.Response:
        message = read_message(Watch, await request.read())
        news = await self._until(partial(self._desk.news, message), message.wait_s)
        return web.Response(status=204) if news is None else web.json_response(news.model_dump())

    async def _until(self, look: Callable[[], Result | None], wait_s: float) -> Result | None:
        """What `look` finds, now or after a change within the time."""
        return await long_poll(partial(self.call, look), lambda: self._change, wait_s, lambda: self._desk.closing)

    async def _health(self, request: web.Request) -> web.Response:
        status = {"status": str(self.failure) if self.failure else "ok", **self._desk.health()}
        return web.json_response(status, status=503 if self.failure else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        families = [*await self.call(self._desk.figures), *self.verdicts.figures()]
        return web.Response(body=figures.text(families).encode(), headers={"Content-Type": figures.CONTENT_TYPE})

    def _middleware(self):
        """Authorisation, and every refusal as a JSON body with the coordinator's term."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._authorise(request)
                response = await handler(request)
            except MessageError as error:
                response = _refusal(error.status, str(error))
            except StaleEpoch as error:
                response = _refusal(410, str(error))
            except (RolloutRefused, TransitionError) as error:
                response = _refusal(400, str(error))
            except RunFailed as error:
                response = _refusal(503, str(error))
            except web.HTTPException as error:
                response = _refusal(error.status, http_words(error, request, self._max_body_bytes))
            response.headers[TERM_HEADER] = str(self._desk.term)
            return response

        return middleware

    def _authorise(self, request: web.Request) -> None:
        """With a token every call needs it, but for /health. Without one, only this machine may call."""
        if request.path == "/health":
            return
        if self._token is None:
            if not on_loopback(request.remote):
                raise MessageError("without --token-file this coordinator answers its own machine only", 401)
            return
        if not bears(request, self._token):
            raise MessageError(f"the token is missing or wrong; send it as {_BEARER} (--token-file)", 401)


def on_loopback(address: str | None) -> bool:
    """The address is one of this machine's own."""
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _refusal(status: int, message: str) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": message}), content_type="application/json")
