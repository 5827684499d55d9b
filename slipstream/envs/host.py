"""The host of graders and environments: it answers model turns beside generation. An actor with an event loop in a thread of its own.

Implements `core.ports.Environments` for any task. Tasks of one turn are judged by `Task.grade` in a few threads, which bound
themselves: verifiers have deadlines of their own. Interactive tasks have an `envs.episode.Episode` for each sample; async methods of
environments run on the event loop, plain ones in threads, hundreds at a time, and one that hangs is left behind at its deadline.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.ports import EpisodeKey
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, ModelTurn, OutcomeKind, Prompt
from slipstream.envs.environment import Interactive
from slipstream.envs.episode import Episode
from slipstream.envs.failures import FirstFailures
from slipstream.envs.task import Task
from slipstream.envs.threads import Threads
from slipstream.telemetry.events import Events, NullEvents

GRADERS = 8  # threads for verdicts: enough to keep the processes of any verifier busy
STEPS = 256  # threads for plain methods of environments, at most
CLOSE_S = 5.0  # for environments to close when the run ends

Answer = tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]


class EnvironmentHost:
    """Starts its threads with the first turn. `on_answer` is called, from a thread of its own, whenever there is something to take.

    Raises ConfigError at once where an interactive task's deadlines contradict each other.
    """

    def __init__(self, task: Task, *, clock: Clock, on_answer: Callable[[], None] = lambda: None, events: Events = NullEvents()) -> None:
        self._task, self._clock, self._on_answer, self._events = task, clock, on_answer, events
        self._interactive = task if isinstance(task, Interactive) else None
        if self._interactive is not None:
            self._interactive.limits.check()
        self._threads = Threads(STEPS if self._interactive else GRADERS, "environment" if self._interactive else "grader")
        self._failures = FirstFailures(f"the environment of {task.name}")
        self._episodes: dict[EpisodeKey, Episode] = {}  # of the event loop's thread, as are the next two
        self._working: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._ready = threading.Condition()
        self._answers: list[Answer] = []
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def interactive(self) -> bool:
        return self._interactive is not None and self._interactive.limits.turns > 1

    @property
    def outcomes(self) -> Counter[OutcomeKind]:
        """How the episodes of interactive tasks ended so far."""
        return self._failures.counts

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        loop = self._running_loop()
        loop.call_soon_threadsafe(lambda: _keep(loop.create_task(self._guarded(key, prompt, turn)), self._working))

    def answered(self) -> list[Answer]:
        with self._ready:
            if self._failure is not None:
                raise self._failure
            answers, self._answers = self._answers, []
        return answers

    def wait(self, timeout_s: float) -> bool:
        with self._ready:
            return self._ready.wait_for(lambda: bool(self._answers) or self._failure is not None, timeout_s)

    def close(self) -> None:
        """Also closes the environments of episodes that have not ended. May be called again."""
        self._closed = True
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None
        self._threads.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise RunFailed("the host of environments is closed")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="environments", daemon=True)
            self._thread.start()
        return self._loop

    async def _judge(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        outcome = await asyncio.wrap_future(self._threads.submit(lambda: self._task.grade(prompt, turn.text)))
        self._put(key, EpisodeEnd(outcome=outcome, finish_reason=turn.finish_reason))

    async def _step(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        task = self._interactive
        assert task is not None  # `answer` asked
        episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = Episode(prompt, task, clock=self._clock, threads=self._threads)
        answer = await episode.answer(turn)
        if isinstance(answer, EpisodeEnd):
            del self._episodes[key]
            _keep(asyncio.create_task(self._close_episode(episode)), self._closing)
            self._failures.passed(answer.outcome)
        self._put(key, answer)

    async def _guarded(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        """What a grader falls over, and what ends a run, is raised where answers are taken."""
        try:
            await (self._step if self._interactive else self._judge)(key, prompt, turn)
        except Exception as error:  # noqa: BLE001 - kept and raised again by `answered`
            with self._ready:
                self._failure = self._failure or error
                self._ready.notify_all()
            self._on_answer()

    async def _close_episode(self, episode: Episode) -> None:
        try:
            await episode.close()
        except Exception as error:  # noqa: BLE001 - the verdict is in; what is left behind is told
            self._events.emit("environment", "close_failed", detail=f"{type(error).__name__}: {error}"[:300])

    def _put(self, key: EpisodeKey, answer: EnvironmentTurn | EpisodeEnd) -> None:
        with self._ready:
            news = not self._answers
            self._answers.append((key, answer))
            self._ready.notify_all()
        if news:  # who has been told of one answer takes them all
            self._on_answer()

    async def _end(self) -> None:
        """Give up what is being answered, and close what is open."""
        for task in (working := [*self._working]):
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for episode in self._episodes.values():
            _keep(asyncio.create_task(self._close_episode(episode)), self._closing)
        self._episodes.clear()
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if late:
                self._events.emit("environment", "close_failed", detail=f"{len(late)} environments did not close in {CLOSE_S:g} s")


def _keep(task: asyncio.Task[None], tasks: set[asyncio.Task[None]]) -> None:
    """Event loops hold tasks weakly."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
