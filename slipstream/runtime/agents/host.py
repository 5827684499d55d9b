"""The host of agents: starts them, serves the endpoint that they ask, and tells how their episodes ended. An actor with threads of its own.

Implements `core.ports.Agents` for tasks with agents (`envs.agent.AgentTask`). One event loop serves the endpoint and keeps the
episodes; agents that are coroutines share another, plain ones have a thread each, so that none that blocks holds up an answer. One that
hangs is ended, or left behind where it is a thread, at its deadline.
"""

import asyncio
import inspect
import secrets
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed, SlipstreamError
from slipstream.core.ports import EpisodeKey
from slipstream.core.records import AgentEpisode, AgentNews, Outcome, OutcomeKind, Prompt, Sample, SampleRequest
from slipstream.envs.agent import AgentTask, Lead, failed, verdict
from slipstream.envs.failures import FirstFailures
from slipstream.envs.task import Task
from slipstream.envs.threads import Threads
from slipstream.loop.agent_episodes import episode_key
from slipstream.runtime.agents.app import Endpoint
from slipstream.runtime.agents.episode import Asked, Episode
from slipstream.runtime.agents.event_loop import EventLoop
from slipstream.runtime.agents.plan import Rules
from slipstream.runtime.agents.record import Said
from slipstream.telemetry.events import Events, NullEvents
from slipstream.text.detokenize import read_decoding

ROLE = "agents"


class AgentHost:
    """Starts its threads with the first episode. `on_news` is called, from a thread of its own, whenever there is something to take."""

    def __init__(self, task: Task, *, clock: Clock, on_news: Callable[[], None] = lambda: None, events: Events = NullEvents()) -> None:
        if not isinstance(task, AgentTask):
            raise ValueError(f"task {task.name} has no agents")
        self._task, self._agents, self._clock, self._on_news, self._events = task, task, clock, on_news, events
        self._limits = task.agent_limits
        self._tokens = task.tokenizer.known_tokens
        self._threads = Threads(self._limits.at_once, "agent")
        self._failures = FirstFailures(f"the agent of {task.name}")
        self._waiting: deque[Episode] = deque()  # of the event loop's thread, as are the next three
        self._working: dict[EpisodeKey, Episode] = {}
        self._by_api_key: dict[str, Episode] = {}
        self._endpoint = Endpoint(self, read_decoding(task.tokenizer))
        self._ready = threading.Condition()
        self._news: list[SampleRequest | EpisodeKey | AgentEpisode] = []
        self._failure: BaseException | None = None
        self._loop: EventLoop | None = None
        self._agents_loop: EventLoop | None = None
        self._closed = False

    @property
    def at_once(self) -> int:
        return self._limits.at_once

    @property
    def base_url(self) -> str:
        """Of the endpoint, once an episode has begun."""
        return self._endpoint.base_url

    # what the sampler's thread calls

    def begin(self, prompt: Prompt, first: SampleRequest) -> None:
        rules = Rules(
            tokenizer=self._task.tokenizer,
            tokens=self._tokens,
            template=self._agents.chat,
            temperature=first.temperature,
            max_prompt_tokens=self._task.max_prompt_tokens,
            max_new_tokens=first.max_new_tokens,
        )
        episode = Episode(prompt=prompt, first=first, rules=rules, api_key=secrets.token_urlsafe(24))
        self._running_loop().call(self._add, episode)

    def reply(self, sample: Sample) -> None:
        self._running_loop().call(self._replied, sample)

    def drop(self, key: EpisodeKey) -> None:
        self._running_loop().call(self._dropped, key)

    def news(self) -> AgentNews:
        with self._ready:
            if self._failure is not None:
                raise self._failure
            news, self._news = self._news, []
        return AgentNews(
            asked=tuple(one for one in news if isinstance(one, SampleRequest)),
            withdrawn=tuple(one for one in news if isinstance(one, tuple)),
            ended=tuple(one for one in news if isinstance(one, AgentEpisode)),
        )

    def wait(self, timeout_s: float) -> bool:
        with self._ready:
            return self._ready.wait_for(lambda: bool(self._news) or self._failure is not None, timeout_s)

    def close(self) -> None:
        """May be called again."""
        self._closed = True
        if self._loop is not None and self._agents_loop is not None:
            self._loop.finish(self._end())
            self._agents_loop.stop()
            self._loop.stop()
            self._loop = self._agents_loop = None
        self._threads.close()

    # what the endpoint calls, on the event loop

    def episode_of(self, api_key: str) -> Episode | None:
        """The open episode that a key names."""
        return self._by_api_key.get(api_key)

    @property
    def most_requests(self) -> int:
        """Of one episode."""
        return self._limits.requests

    def ask(self, episode: Episode, said: Said, new_tokens: int, stop_ids: Sequence[int]) -> tuple[EpisodeKey, Asked]:
        """Ask the sampler for a turn."""
        request, asked = episode.ask(said, new_tokens, stop_ids)
        self._tell(request)
        return request.key, asked

    def withdraw(self, episode: Episode, key: EpisodeKey) -> None:
        """Nobody waits for a turn any more: its client has left. It is no part of any conversation."""
        if episode.asked.pop(key, None) is not None:
            self._tell(key)
            self._events.emit(ROLE, "agent_request_withdrawn", ticket=episode.first.key[0], sample=episode.first.key[1])

    # on the event loop

    def _running_loop(self) -> EventLoop:
        if self._closed:
            raise RunFailed("the host of agents is closed")
        if self._loop is None:
            self._loop, self._agents_loop = EventLoop("agents' endpoint"), EventLoop("agents")
            self._loop.finish(self._endpoint.start())
        return self._loop

    def _add(self, episode: Episode) -> None:
        self._waiting.append(episode)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and len(self._working) < self._limits.at_once:
            episode = self._waiting.popleft()
            self._working[episode.first.key] = self._by_api_key[episode.api_key] = episode
            episode.leading = asyncio.create_task(self._lead(episode))

    def _replied(self, sample: Sample) -> None:
        episode = self._working.get(episode_key(sample.key))
        asked = episode.asked.get(sample.key) if episode is not None else None
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(sample)

    def _dropped(self, key: EpisodeKey) -> None:
        self._waiting = deque(one for one in self._waiting if one.first.key != key)
        episode = self._working.get(key)
        if episode is not None and episode.leading is not None:
            episode.leading.cancel()
            self._forget(episode)

    async def _lead(self, episode: Episode) -> None:
        """Run an agent to its end. What ends a run is kept and raised where news are taken."""
        try:
            outcome = await self._outcome(episode)
            self._forget(episode)
            ended = episode.ended(outcome, self._clock.now_s())
            if episode.side_chains:
                side = {"conversations": episode.side_chains, "turns": ended.outcome.side_turns}
                self._events.emit(ROLE, "agent_side_chains", ticket=ended.key[0], sample=ended.key[1], **side)
            self._failures.passed(ended.outcome)
            self._tell(ended)
        except Exception as error:  # noqa: BLE001 - kept and raised again by `news`
            with self._ready:
                self._failure = self._failure or error
                self._ready.notify_all()
            self._on_news()
        self._start_next()

    async def _outcome(self, episode: Episode) -> Outcome:
        deadline = asyncio.timeout(self._limits.episode_s)
        try:
            async with deadline:
                returned = await self._called(episode)
        except TimeoutError as error:
            if deadline.expired():
                return failed(f"did not return in {self._limits.episode_s:g} s", OutcomeKind.TIMEOUT)
            return failed(f"raised TimeoutError: {error}")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return failed("was cancelled by itself")
        except SlipstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - agents of users may raise anything, and a run goes on
            return failed(f"raised {type(error).__name__}: {error}")
        return verdict(returned)

    async def _called(self, episode: Episode) -> Any:
        lead = self._agents.agent(episode.prompt)
        if inspect.iscoroutinefunction(lead):
            return await self._elsewhere(lead(self.base_url, episode.api_key))
        future = self._threads.submit(lambda: _plainly(lead, self.base_url, episode.api_key))
        try:
            returned = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._threads.abandon(future)
            raise
        return await self._elsewhere(returned) if inspect.iscoroutine(returned) else returned

    async def _elsewhere(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """On the agents' event loop; cancelled there when it is cancelled here."""
        assert self._agents_loop is not None
        return await asyncio.wrap_future(self._agents_loop.submit(_awaited(coroutine)))

    def _forget(self, episode: Episode) -> None:
        """Its key opens nothing any more, and what it still asks for is withdrawn."""
        self._working.pop(episode.first.key, None)
        self._by_api_key.pop(episode.api_key, None)
        for key, asked in episode.asked.items():
            asked.answer.cancel()
            self._tell(key)
        episode.asked = {}

    def _tell(self, news: SampleRequest | EpisodeKey | AgentEpisode) -> None:
        with self._ready:
            if isinstance(news, tuple):  # a turn that the sampler has not heard of yet is not asked for at all
                before = len(self._news)
                self._news = [one for one in self._news if not (isinstance(one, SampleRequest) and one.key == news)]
                if len(self._news) < before:
                    return
            first = not self._news
            self._news.append(news)
            self._ready.notify_all()
        if first:  # who has been told of one takes them all
            self._on_news()

    async def _end(self) -> None:
        self._waiting.clear()
        leading = [episode.leading for episode in self._working.values() if episode.leading is not None]
        for episode in [*self._working.values()]:
            self._forget(episode)
        for task in leading:
            task.cancel()
        await asyncio.gather(*leading, return_exceptions=True)
        await self._endpoint.stop()


class AgentExit(Exception):
    """An agent raised what is meant for a whole process (SystemExit and the like), which is not its own."""


def _plainly(lead: Lead, base_url: str, api_key: str) -> Any:
    try:
        return lead(base_url, api_key)
    except Exception:
        raise
    except BaseException as error:
        raise AgentExit(repr(error)) from error


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Without the exceptions that end an event loop, or pass by who waits."""
    try:
        return await coroutine
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise AgentExit(repr(error)) from error
