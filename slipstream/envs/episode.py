"""One episode on its environment's side: limits, deadlines, failures, and the words of the environment as token ids.

Made by `envs.host` for each sample of an interactive task. An environment's failure is an outcome without a reward: nothing is ever
trained on the empty result of a tool that broke. A model that comes to a limit without an answer has given none (unparseable).
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import SlipstreamError
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, FinishReason, ModelTurn, Outcome, OutcomeKind, Prompt
from slipstream.envs.environment import Environment, Interactive, Observation
from slipstream.envs.threads import Threads


class Episode:
    """Its turns are answered one after the other, on one event loop."""

    def __init__(self, prompt: Prompt, task: Interactive, *, clock: Clock, threads: Threads) -> None:
        self._prompt, self._make, self._transcript, limits = prompt, task.environment, task.transcript(prompt), task.limits
        self._environment: Environment | None = None  # made with the first turn
        self._limits, self._clock, self._threads = limits, clock, threads
        self._turns = self._calls = self._failed_calls = 0
        self._began_s = clock.now_s()

    async def answer(self, turn: ModelTurn) -> EnvironmentTurn | EpisodeEnd:
        """What the environment says to the turn, or how the episode ended. Raises SlipstreamError: a failure that ends the run."""
        self._turns += 1
        left = min(self._limits.step_s, self._began_s + self._limits.episode_s - self._clock.now_s())
        if left <= 0:
            return self._failed(OutcomeKind.TIMEOUT, f"the episode took longer than {self._limits.episode_s:g} s")
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                said = await self._step(turn)
        except TimeoutError as error:
            if deadline.expired():
                return self._failed(OutcomeKind.TIMEOUT, f"no answer of the environment in {left:.3g} s, turn {self._turns}")
            return self._failed(OutcomeKind.INFRASTRUCTURE, f"the environment raised TimeoutError: {error}")
        except SlipstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - environments of users may raise anything, and a run goes on
            return self._failed(OutcomeKind.INFRASTRUCTURE, f"the environment raised {type(error).__name__}: {error}")
        if isinstance(said, Outcome):
            return self._ended(said, turn.finish_reason)
        if isinstance(said, Observation):
            return self._replied(turn, said)
        return self._failed(OutcomeKind.INFRASTRUCTURE, f"the environment said a {type(said).__name__}, no observation and no outcome")

    async def close(self) -> None:
        """Raises what the environment does."""
        if self._environment is not None:
            await self._call(self._environment.close)

    async def _step(self, turn: ModelTurn) -> Any:
        environment = self._environment
        if environment is None:
            environment = self._environment = await self._call(self._make, self._prompt)
            await self._call(environment.start, self._prompt)
        return await self._call(environment.step, turn)

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """A plain method in a thread, which is left behind when its time is up; a coroutine here."""
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        future = self._threads.submit(lambda: method(*arguments))
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._threads.abandon(future)
            raise
        return await result if inspect.isawaitable(result) else result

    def _replied(self, turn: ModelTurn, said: Observation) -> EnvironmentTurn | EpisodeEnd:
        """The observation as tokens, where the episode's limits leave a further turn."""
        self._calls += said.calls
        self._failed_calls += said.failed_calls
        if turn.room < 2:
            return self._unanswered("no answer before the limit of tokens", turn.finish_reason)
        if self._turns == self._limits.turns:
            return self._unanswered(f"no answer in {self._turns} turns", FinishReason.ENVIRONMENT)
        if not (said.messages or said.text) or not len(ids := self._transcript.reply(turn.token_ids, said)):
            return self._failed(OutcomeKind.INFRASTRUCTURE, "the environment said nothing")
        if len(ids) >= turn.room:
            return self._unanswered(f"no room for what the environment said: {len(ids)} tokens", FinishReason.LENGTH)
        return EnvironmentTurn(token_ids=ids)

    def _unanswered(self, why: str, reason: FinishReason) -> EpisodeEnd:
        return self._ended(Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, detail=why), reason)

    def _failed(self, kind: OutcomeKind, why: str) -> EpisodeEnd:
        return self._ended(Outcome(kind=kind, reward=None, detail=why[:300]), FinishReason.ENVIRONMENT)

    def _ended(self, outcome: Outcome, reason: FinishReason) -> EpisodeEnd:
        outcome = replace(outcome, calls=outcome.calls + self._calls, failed_calls=outcome.failed_calls + self._failed_calls)
        return EpisodeEnd(outcome=outcome, finish_reason=reason)
