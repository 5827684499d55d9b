"""The endpoint that agents ask: the routes of `slipstream serve`, answered with turns of the run's own sampler and recorded.

The API key names the episode. An answer is given when its turn has ended, also where it is sent as a stream. A handler is cancelled
when its client leaves; the turn is withdrawn then. On one event loop; made by `agents.host`.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from aiohttp import web

from slipstream.core.ports import EpisodeKey
from slipstream.core.records import FinishReason, Sample
from slipstream.runtime.agents.episode import Asked, Episode
from slipstream.runtime.agents.plan import NoRoom, Rules, chat_turn, check_parameters, plan_chat, plan_completion, room
from slipstream.runtime.agents.record import Said, Turn
from slipstream.runtime.http_requests import bearer, http_words
from slipstream.runtime.serve.answers import Writer
from slipstream.runtime.serve.app import MAX_BODY_BYTES, refusal, streamed
from slipstream.runtime.serve.choice import Choice, Piece
from slipstream.runtime.serve.engine_loop import Update
from slipstream.runtime.serve.plan import Plan, check_stops, extra_stop_ids
from slipstream.runtime.serve.wire import ChatRequest, CompletionRequest, Request, RequestError, read_request
from slipstream.text.detokenize import Decoding
from slipstream.text.tool_calls import tool_format

HOST = "127.0.0.1"
MODEL = "policy"  # as the endpoint lists it; requests may name any
FAREWELL_S = 1.0  # for the last bytes of answers

AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest)


class Episodes(Protocol):
    """Who keeps the episodes, as `agents.host`."""

    @property
    def most_requests(self) -> int: ...

    def episode_of(self, api_key: str) -> Episode | None: ...

    def ask(self, episode: Episode, said: Said, new_tokens: int, stop_ids: tuple[int, ...]) -> tuple[EpisodeKey, Asked]: ...

    def withdraw(self, episode: Episode, key: EpisodeKey) -> None: ...


class Endpoint:
    """Serves between `start` and `stop`, on this machine alone."""

    def __init__(self, episodes: Episodes, decoding: Decoding) -> None:
        self._episodes, self._decoding = episodes, decoding
        self._runner: web.AppRunner | None = None
        self.base_url = ""

    async def start(self) -> None:
        app = web.Application(middlewares=[_refusals], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0, backlog=1024)
        await site.start()
        self.base_url = f"http://{HOST}:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        self._episode(request)
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "slipstream"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._turn(request, ChatRequest, plan_chat)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._turn(request, CompletionRequest, plan_completion)

    async def _turn(
        self, request: web.Request, kind: type[AnyRequest], plan: Callable[[AnyRequest, Rules, Sequence[Turn]], Said]
    ) -> web.StreamResponse:
        episode, wire = self._episode(request), read_request(kind, await request.read())
        check_parameters(wire, episode.rules)
        check_stops(wire.stops(), episode.rules.tokenizer)
        said = await asyncio.to_thread(plan, wire, episode.rules, tuple(episode.turns))
        return await self._answer(request, episode, wire, said)

    def _episode(self, request: web.Request) -> Episode:
        key = bearer(request.headers.get("Authorization", ""))
        episode = None if key is None else self._episodes.episode_of(key)
        if episode is None:
            message = "the API key is that of no open episode; an agent uses the one it was called with, until it returns"
            raise RequestError(message, code="invalid_api_key", status=401)
        return episode

    def _admit(self, episode: Episode, wire: Request, said: Said) -> int:
        """How many tokens may be drawn. Raises RequestError where the episode has ended or come to a limit."""
        if self._episodes.episode_of(episode.api_key) is not episode:
            raise RequestError("the episode has ended", code="episode_ended", status=401)
        try:
            new_tokens = room(wire, said, episode.rules)
        except NoRoom as error:
            episode.limit = str(error)
            raise
        if episode.requests >= self._episodes.most_requests:
            episode.limit = f"the episode has made {episode.requests} requests, as many as it may (task.max_turns)"
            raise RequestError(episode.limit, code="too_many_turns")
        return new_tokens

    async def _answer(self, request: web.Request, episode: Episode, wire: Request, said: Said) -> web.StreamResponse:
        stop_ids = extra_stop_ids(wire, episode.rules.tokens)
        new_tokens = self._admit(episode, wire, said)
        sample = await self._drawn(episode, said, new_tokens, stop_ids)
        choice, update = self._choice(wire, episode, said, sample, stop_ids), _update(sample)
        piece = choice.push(update)
        writer = self._writer(wire, episode, said, sample)
        self._record(episode, said, sample, choice, writer)
        if wire.stream:
            usage = bool(wire.stream_options and wire.stream_options.include_usage)
            async with aclosing(_one(piece)) as pieces:
                return await streamed(request, pieces, [choice], writer, usage)
        return web.json_response(writer.whole([choice]))

    async def _drawn(self, episode: Episode, said: Said, new_tokens: int, stop_ids: tuple[int, ...]) -> Sample:
        key, asked = self._episodes.ask(episode, said, new_tokens, stop_ids)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            if asked.answer.cancelled():  # by the episode's end
                raise RequestError("the episode has ended", code="episode_ended", status=401) from None
            raise
        finally:
            if asked.answer.done() and not asked.answer.cancelled():
                episode.asked.pop(key, None)
            else:
                self._episodes.withdraw(episode, key)

    def _choice(self, wire: Request, episode: Episode, said: Said, sample: Sample, stop_ids: tuple[int, ...]) -> Choice:
        after = said.prompt_ids.tolist() if isinstance(wire, CompletionRequest) else ()
        return Choice(decoding=self._decoding, stops=wire.stops(), stop_ids=(*episode.first.stop_ids, *stop_ids), after=after)

    def _writer(self, wire: Request, episode: Episode, said: Said, sample: Sample) -> Writer:
        chat = isinstance(wire, ChatRequest)
        tools = tool_format(episode.rules.template.source) if isinstance(wire, ChatRequest) and wire.shown_tools() else None
        opened = said.conversation is not None and self._thinking(said)
        request = replace(episode.first, key=sample.key, prompt_ids=said.prompt_ids)
        return Writer(
            kind="chat" if chat else "completion",
            id=f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=wire.model or MODEL,
            plan=Plan(prompts=(said.prompt_ids,), samples=(request,), seed=episode.first.seed, tools=tools, thinking_open=opened),
            decoding=self._decoding,
            logprobs=wire.wants_logprobs(),
            token_ids=bool(wire.return_token_ids),
        )

    def _thinking(self, said: Said) -> bool:
        """The prompt has begun the model's thinking."""
        return self._decoding.tokenizer.decode(said.prompt_ids[-8:].tolist()).rstrip().endswith("<think>")

    def _record(self, episode: Episode, said: Said, sample: Sample, choice: Choice, writer: Writer) -> None:
        """The turn as the agent is given it: up to the token that completes a stop string, where there is one."""
        kept = len(choice.tokens)
        cut = replace(
            sample,
            completion_ids=sample.completion_ids[:kept],
            logprobs=sample.logprobs[:kept],
            versions=sample.versions[:kept],
            raw_logprobs=None,
            finish_reason=FinishReason.STOP if choice.finish == "stop" else sample.finish_reason,
        )
        turn = Turn(said=said, sample=cut)
        if writer.kind == "chat":
            turn = chat_turn(said, turn, writer.whole([choice])["choices"][0]["message"])
        elif said.text is not None:
            uncut = Choice(decoding=self._decoding, stop_ids=choice.stop_ids, after=choice.after)
            uncut.push(_update(cut))
            turn = replace(turn, text=said.text + uncut.text)
        episode.turns.append(turn)


def _update(sample: Sample) -> Update:
    return Update(
        key=sample.key,
        token_ids=sample.completion_ids.tolist(),
        logprobs=sample.logprobs.tolist(),
        versions=sample.versions.tolist(),
        finish=sample.finish_reason,
    )


async def _one(piece: Piece) -> AsyncGenerator[tuple[int, Piece], None]:
    yield 0, piece


@web.middleware
async def _refusals(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Every refusal as a JSON body in OpenAI's form."""
    try:
        return await handler(request)
    except RequestError as error:
        return refusal(error)
    except web.HTTPException as error:
        return refusal(RequestError(http_words(error, request, MAX_BODY_BYTES), status=error.status))
    except ConnectionError:  # met while writing: whatever is returned now goes nowhere
        return web.Response(status=499)
