"""An episode's limits on its environment's side: turns, tokens, seconds; whatever the environment does, there is one sound answer."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.records import EnvironmentTurn, EpisodeEnd, FinishReason, ModelTurn, Outcome, OutcomeKind, Prompt
from slipstream.envs.environment import Limits, Observation
from slipstream.envs.episode import Episode
from slipstream.envs.threads import Threads
from tests.envs.talkers import RIGHT, TalkTask, turn

LIMITS = Limits(turns=3, step_s=30.0, episode_s=50.0)


class Says:
    """`step` is what `says` gives for the number of the turn."""

    def __init__(self, says: Callable[[int], object]) -> None:
        self._says, self._turns = says, 0

    async def start(self, prompt: Prompt) -> None: ...

    async def step(self, turn: ModelTurn):
        self._turns += 1
        return self._says(self._turns)

    async def close(self) -> None: ...


def answers(says: Callable[[int], object], *turns: ModelTurn, clock: ManualClock | None = None, limits: Limits = LIMITS):
    """The answers to the turns, one after the other; 20 seconds pass between them where there is a clock."""
    task, threads = TalkTask(make=lambda prompt: Says(says), limits=limits), Threads(1, "test")
    prompt = task.prompt(0)
    time = clock or ManualClock()

    async def all_of_them() -> list[EnvironmentTurn | EpisodeEnd]:
        episode = Episode(prompt, task, clock=time, threads=threads)
        found = []
        for one in turns:
            found.append(await episode.answer(one))
            time.advance(20.0 if clock else 0.0)
        return found

    try:
        return asyncio.run(all_of_them())
    finally:
        threads.close()


def words(number: int) -> Observation:
    return Observation(text=f"+{number}", calls=2, failed_calls=1)


def test_words_become_tokens_until_the_turns_are_used_up() -> None:
    first, second, last = answers(words, turn(), turn(), turn())
    encoded = TalkTask(make=lambda prompt: Says(words)).tokenizer.encode
    assert [first.token_ids.tolist(), second.token_ids.tolist()] == [encoded("+1").tolist(), encoded("+2").tolist()]
    assert (last.outcome.kind, last.outcome.reward, last.finish_reason) == (OutcomeKind.UNPARSEABLE, 0.0, FinishReason.ENVIRONMENT)
    assert (last.outcome.calls, last.outcome.failed_calls, last.outcome.detail) == (6, 3, "no answer in 3 turns")


def test_a_verdict_ends_the_episode_with_the_calls_before_it() -> None:
    _, end = answers(lambda number: words(1) if number == 1 else RIGHT, turn(), turn(reason=FinishReason.LENGTH, room=0))
    assert (end.outcome.kind, end.outcome.reward, end.outcome.calls, end.outcome.failed_calls) == (OutcomeKind.VALUE, 1.0, 2, 1)
    assert end.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("one", "reason", "why"),
    [
        (turn(room=3), None, ""),  # two tokens of the environment, and one to go on
        (turn(room=2), FinishReason.LENGTH, "no room for what the environment said: 2 tokens"),
        (turn(room=0, reason=FinishReason.LENGTH), FinishReason.LENGTH, "no answer before the limit of tokens"),
    ],
)
def test_tokens_are_bounded(one: ModelTurn, reason: FinishReason | None, why: str) -> None:
    (answer,) = answers(words, one)
    if reason is None:
        assert isinstance(answer, EnvironmentTurn)
    else:
        assert (answer.finish_reason, answer.outcome.detail, answer.outcome.reward) == (reason, why, 0.0)


def raises(error: Exception) -> Callable[[int], object]:
    def says(_: int) -> object:
        raise error

    return says


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (raises(OSError("no such machine")), "the environment raised OSError: no such machine"),
        (raises(TimeoutError("its own")), "the environment raised TimeoutError: its own"),
        (lambda _: "words", "the environment said a str, no observation and no outcome"),
        (lambda _: None, "the environment said a NoneType"),
        (lambda _: Observation(), "the environment said nothing"),
    ],
)
def test_a_broken_environment_is_an_infrastructure_failure_and_never_a_reward(says: Callable[[int], object], why: str) -> None:
    (end,) = answers(says, turn())
    assert (end.outcome.kind, end.outcome.reward, end.finish_reason) == (OutcomeKind.INFRASTRUCTURE, None, FinishReason.ENVIRONMENT)
    assert end.outcome.detail.startswith(why)


def test_an_episode_past_its_time_is_a_timeout_and_its_environment_not_asked() -> None:
    asked: list[int] = []

    def says(number: int) -> Observation:
        asked.append(number)
        return words(number)

    *_, end = answers(says, *[turn()] * 4, clock=ManualClock(), limits=Limits(turns=9, step_s=30.0, episode_s=50.0))
    assert (end.outcome.kind, end.outcome.reward, asked) == (OutcomeKind.TIMEOUT, None, [1, 2, 3])
    assert end.outcome.detail == "the episode took longer than 50 s"


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_step_past_its_time_is_a_timeout_and_its_thread_replaced(plain: bool) -> None:
    gate = threading.Event()

    class Hangs(Says):
        async def step(self, turn: ModelTurn) -> Outcome:
            await asyncio.Event().wait()
            return RIGHT

    class Blocks(Says):
        def step(self, turn: ModelTurn) -> Outcome:
            assert gate.wait(600.0)
            return RIGHT

    threads, limits = Threads(1, "test"), Limits(turns=3, step_s=0.05, episode_s=50.0)
    task = TalkTask(make=lambda prompt: (Blocks if plain else Hangs)(words), limits=limits)
    episode = Episode(task.prompt(0), task, clock=ManualClock(), threads=threads)
    end = asyncio.run(episode.answer(turn()))
    assert (end.outcome.kind, end.outcome.detail) == (OutcomeKind.TIMEOUT, "no answer of the environment in 0.05 s, turn 1")
    assert threads.submit(lambda: "free").result(60.0) == "free"
    gate.set()
    threads.close()
