"""The HTTP side: routes, authorisation, errors in OpenAI's form, answers whole or as server-sent events. Called by `serve.server`.

A handler is cancelled when its client leaves; leaving the generation's block then frees the slots.
"""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from slipstream.runtime.http_requests import bears, http_words
from slipstream.runtime.serve.answers import Writer, error_body
from slipstream.runtime.serve.choice import Choice, Piece
from slipstream.runtime.serve.metrics import CONTENT_TYPE, Metrics
from slipstream.runtime.serve.model import LocalModel
from slipstream.runtime.serve.plan import Plan, plan_chat, plan_completion
from slipstream.runtime.serve.service import Busy, Generation, Service
from slipstream.runtime.serve.wire import ChatRequest, CompletionRequest, Request, RequestError, read_request
from slipstream.text.detokenize import Decoding

MAX_BODY_BYTES = 32 << 20
WRITE_S = 60.0  # for a client to take what was written; one that does not is left
RETRY_AFTER_S = 1
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What the handlers share."""

    name: str  # of the model, as clients call it
    model: LocalModel
    decoding: Decoding
    service: Service
    metrics: Metrics
    max_tokens: int  # prompt plus completion
    api_key: str | None
    created: int  # when the server started, seconds since 1970


class EventStream(web.StreamResponse):
    """An answer as server-sent events."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        super().__init__(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
        self.transport = transport
        self.failed = False  # ended in an error, which the status could not tell any more


def build_app(app: App) -> web.Application:
    """The routes. The caller runs it with `handler_cancellation`, on which cancelling by leaving rests."""
    made = web.Application(middlewares=[_middleware(app)], client_max_size=MAX_BODY_BYTES)
    made.router.add_post("/v1/chat/completions", partial(_chat, app))
    made.router.add_post("/v1/completions", partial(_completion, app))
    made.router.add_get("/v1/models", partial(_models, app))
    made.router.add_get("/v1/models/{model:.+}", partial(_one_model, app))
    made.router.add_get("/health", partial(_health, app))
    made.router.add_get("/metrics", partial(_metrics, app))
    return made


def _middleware(app: App):
    """Authorisation, and every refusal as a JSON body; counts how requests for tokens end."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        outcome = "failed"
        try:
            _authorise(app, request)
            response = await handler(request)
            outcome = "failed" if isinstance(response, EventStream) and response.failed else "ok"
            return response
        except RequestError as error:
            outcome = "busy" if error.status == 429 else "failed" if error.status >= 500 else "refused"
            return refusal(error)
        except web.HTTPException as error:
            outcome = "refused"
            return refusal(RequestError(http_words(error, request, MAX_BODY_BYTES), status=error.status))
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except ConnectionError:  # met while writing: whatever is returned now goes nowhere
            outcome = "cancelled"
            return web.Response(status=499)
        finally:
            if request.method == "POST":
                app.metrics.requests[_endpoint(request), outcome] += 1

    return middleware


def _authorise(app: App, request: web.Request) -> None:
    """Raises RequestError when the key is wrong. /health and /metrics are open: they tell nothing of what is asked or answered."""
    if app.api_key is None or not request.path.startswith("/v1"):
        return
    if not bears(request, app.api_key):
        raise RequestError("the API key is missing or wrong; send it as Authorization: Bearer KEY", code="invalid_api_key", status=401)


def _endpoint(request: web.Request) -> str:
    """A name that clients cannot make up."""
    return {"/v1/chat/completions": "chat", "/v1/completions": "completions"}.get(request.path, "other")


def refusal(error: RequestError) -> web.Response:
    """The answer to a request that is not met, in OpenAI's form."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, Busy) else {}
    body = error_body(str(error), type=kind, param=error.param, code=error.code)
    return web.json_response(body, status=error.status, headers=headers)


async def _health(app: App, request: web.Request) -> web.Response:
    fault = app.service.fault()
    return web.json_response({"status": fault or "ok", "weight_version": app.service.figures().version}, status=503 if fault else 200)


async def _metrics(app: App, request: web.Request) -> web.Response:
    figures = app.service.figures()
    gauges = {
        "up": ("1 while tokens can come.", float(not app.service.fault())),
        "requests_running": ("Samples that hold a slot.", figures.running),
        "requests_waiting": ("Samples that wait for a slot.", figures.waiting),
        "weight_version": ("Version of the weights that draw now.", figures.version),
    }
    counters = {
        "prefilled_tokens_total": ("Prompt tokens that were computed.", figures.prefilled_tokens),
        "reused_tokens_total": ("Prompt tokens found in pages kept of requests that have ended.", figures.reused_tokens),
    }
    return web.Response(body=app.metrics.text(gauges, counters).encode(), headers={"Content-Type": CONTENT_TYPE})


async def _models(app: App, request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [_card(app)]})


async def _one_model(app: App, request: web.Request) -> web.Response:
    _check_model(app, request.match_info["model"])
    return web.json_response(_card(app))


def _card(app: App) -> dict[str, Any]:
    card = {"id": app.name, "object": "model", "created": app.created, "owned_by": "slipstream"}
    return card | {"max_model_len": app.max_tokens, "weight_version": app.service.figures().version}


def _check_model(app: App, name: str | None) -> None:
    if name not in (None, app.name):
        raise RequestError(f"there is no model {name!r} here; there is {app.name!r}", param="model", code="model_not_found", status=404)


async def _chat(app: App, request: web.Request) -> web.StreamResponse:
    wire = read_request(ChatRequest, await request.read())
    _check_model(app, wire.model)
    id = f"chatcmpl-{uuid.uuid4().hex}"
    plan = await asyncio.to_thread(plan_chat, wire, app.model, id=id, max_tokens=app.max_tokens, fresh_seed=_fresh_seed())
    return await _answer(app, request, wire, plan, _writer(app, "chat", id, wire, plan))


async def _completion(app: App, request: web.Request) -> web.StreamResponse:
    wire = read_request(CompletionRequest, await request.read())
    _check_model(app, wire.model)
    id = f"cmpl-{uuid.uuid4().hex}"
    plan = await asyncio.to_thread(plan_completion, wire, app.model, id=id, max_tokens=app.max_tokens, fresh_seed=_fresh_seed())
    return await _answer(app, request, wire, plan, _writer(app, "completion", id, wire, plan))


def _fresh_seed() -> int:
    """Small enough for a JavaScript client to send it back."""
    return secrets.randbits(53)


def _writer(app: App, kind: Any, id: str, wire: Request, plan: Plan) -> Writer:
    return Writer(
        kind=kind,
        id=id,
        created=int(time.time()),
        model=app.name,
        plan=plan,
        decoding=app.decoding,
        logprobs=wire.wants_logprobs(),
        token_ids=bool(wire.return_token_ids),
    )


async def _answer(app: App, request: web.Request, wire: Request, plan: Plan, writer: Writer) -> web.StreamResponse:
    """The answer, whole or streamed; what was not drawn to its end, since the client left or it failed, is aborted."""
    continues = writer.kind == "completion"  # a chat's answer is a text of its own
    choices = [
        Choice(
            decoding=app.decoding,
            stops=wire.stops(),
            stop_ids=sample.stop_ids,
            after=sample.prompt_ids.tolist() if continues else (),
        )
        for sample in plan.samples
    ]
    with app.service.generation(plan.samples, wire.weight_version) as generation:
        async with aclosing(_pieces(generation, choices)) as pieces:
            if wire.stream:
                usage = bool(wire.stream_options and wire.stream_options.include_usage)
                return await streamed(request, pieces, choices, writer, usage)
            async for _ in pieces:
                pass
    return web.json_response(writer.whole(choices))


async def _pieces(generation: Generation, choices: list[Choice]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The choices' news as it comes; a choice that has ended at a stop string is not drawn further."""
    async for update in generation:
        index = update.key[1]
        piece = choices[index].push(update)
        if piece.finish is not None:
            generation.end(update.key)
        yield index, piece


async def streamed(
    request: web.Request, pieces: AsyncGenerator[tuple[int, Piece], None], choices: list[Choice], writer: Writer, usage: bool
) -> web.StreamResponse:
    """Server-sent events. Nothing is sent before the first piece, so that a refusal can still be told by the status."""
    index, piece = await anext(pieces)
    response = EventStream(request.transport)
    await response.prepare(request)
    await _send(response, [*writer.opening(), *writer.chunks(index, choices[index], piece)])
    try:
        async for index, piece in pieces:
            await _send(response, writer.chunks(index, choices[index], piece))
    except RequestError as error:
        response.failed = True
        await _send(response, [error_body(str(error), type="server_error", param=error.param, code=error.code)])
        await response.write_eof()
        return response
    await _send(response, [writer.usage_chunk(choices)] if usage else [], done=True)
    await response.write_eof()
    return response


async def _send(response: EventStream, chunks: Sequence[Mapping[str, Any]], *, done: bool = False) -> None:
    """Write events. A client that does not take them in time counts as gone."""
    events = [json.dumps(chunk, separators=(",", ":")) for chunk in chunks] + ["[DONE]"] * done
    if not events:
        return
    data = "".join(f"data: {event}\n\n" for event in events).encode()
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)
    except TimeoutError as error:
        if response.transport is not None:
            response.transport.abort()
        raise ConnectionResetError(f"the client took nothing for {WRITE_S:.0f} s") from error
