"""The host answers hundreds of episodes beside generation: none is lost, failures are told apart, nothing that hangs holds up others."""

import asyncio
import threading
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from slipstream.core.clock import ManualClock, SystemClock
from slipstream.core.errors import ConfigError, RunFailed
from slipstream.core.records import EpisodeEnd, FinishReason, ModelTurn, Outcome, OutcomeKind, Prompt, Sample, SampleRequest
from slipstream.core.rng import stream_seed
from slipstream.envs.environment import Limits
from slipstream.envs.host import EnvironmentHost
from slipstream.loop.episodes import Episode, Episodes
from slipstream.telemetry.events import NullEvents
from tests.envs.talkers import RIGHT, AsyncTalker, PlainTalker, Talker, TalkTask, turn
from tests.loop.pure_run import FakeSampler, NumberTask

PATIENCE_S = 120.0
COUNT = 256


def plan(prompt: Prompt) -> tuple[str, int]:
    """What the environment of a prompt does, and at which turn."""
    number = int(prompt.id[1:])
    return {3: "raises", 5: "hangs"}.get(number % 16, "good"), 1 + number % 3


def talker(prompt: Prompt) -> Talker:
    """Every second is plain."""
    what, turns = plan(prompt)
    return (PlainTalker if int(prompt.id[1:]) // 16 % 2 else AsyncTalker)(prompt, what, turns, most_s=0.02)


@pytest.fixture(autouse=True)
def release():
    PlainTalker.released.clear()
    Talker.closed.clear()
    yield
    PlainTalker.released.set()


def scripted(slots: int) -> FakeSampler:
    return FakeSampler("scripted", ManualClock(), slots, tokens_per_step=2)


def run_all(task: TalkTask, host: EnvironmentHost, sampler: FakeSampler, count: int = COUNT) -> tuple[dict[str, Episode], Episodes]:
    sampler.version = 0
    episodes = Episodes(sampler, host, NumberTask())
    for index in range(count):
        prompt = task.prompt(index)
        seed = stream_seed(0, "sample", prompt.id)
        request = SampleRequest(
            key=(prompt.id, 0), prompt_ids=prompt.token_ids, seed=seed, max_new_tokens=200, temperature=1.0, stop_ids=(0,)
        )
        episodes.begin(prompt, request)
    found: dict[str, Episode] = {}
    while episodes.open:
        for episode in episodes.run():
            assert episode.prompt.id not in found
            found[episode.prompt.id] = episode
    return found, episodes


def test_256_episodes_with_random_latencies_and_failures() -> None:
    """Also: an environment that hangs costs its own episode only, and every environment is closed once."""
    task = TalkTask(make=talker, limits=Limits(turns=6, step_s=5.0, episode_s=120.0))
    with closing(EnvironmentHost(task, clock=SystemClock())) as host:
        found, episodes = run_all(task, host, scripted(16))
        outcomes = Counter(host.outcomes)
    assert set(found) == {task.prompt(index).id for index in range(COUNT)}
    wanted = {"good": OutcomeKind.VALUE, "raises": OutcomeKind.INFRASTRUCTURE, "hangs": OutcomeKind.TIMEOUT}
    for episode in found.values():
        what, turns = plan(episode.prompt)
        assert episode.outcome.kind is wanted[what], (episode.prompt.id, episode.outcome)
        assert (episode.outcome.reward is None) == (what != "good")
        said = turns if what == "good" else turns - 1
        assert episode.outcome.calls == said
        assert np.count_nonzero(~episode.loss_mask) == 2 * said
        assert episode.sample.finish_reason is (FinishReason.STOP if what == "good" else FinishReason.ENVIRONMENT)
    assert outcomes == {OutcomeKind.VALUE: 224, OutcomeKind.INFRASTRUCTURE: 16, OutcomeKind.TIMEOUT: 16}
    assert {name: Talker.closed[name] for name in found} == dict.fromkeys(found, 1)
    assert episodes.overlapped > episodes.steps // 2  # most of the sampling was done while environments were at work


def test_latencies_slots_and_threads_change_no_token() -> None:
    def tokens(slots: int, most_s: float, kind: type[Talker]) -> dict[str, list[int]]:
        task = TalkTask(make=lambda prompt: kind(prompt, "good", plan(prompt)[1], most_s))
        with closing(EnvironmentHost(task, clock=SystemClock())) as host:
            found, _ = run_all(task, host, scripted(slots), count=40)
        return {name: episode.sample.completion_ids.tolist() for name, episode in found.items()}

    assert tokens(3, 0.0, AsyncTalker) == tokens(40, 0.02, PlainTalker)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_generation_goes_on_while_environments_wait(plain: bool) -> None:
    """Those of the first three samples answer only when the fourth is drawn, by a sampler that draws one at a time."""
    drawn = threading.Event()

    class Tells(FakeSampler):
        def step(self) -> list[Sample]:
            ended = super().step()
            if any(sample.key[0] == "n3" for sample in ended):
                drawn.set()
            return ended

    class Waits:
        def start(self, prompt: Prompt) -> None: ...
        def close(self) -> None: ...

        def step(self, turn: ModelTurn) -> Outcome:
            return RIGHT if drawn.wait(PATIENCE_S) else Outcome(kind=OutcomeKind.TIMEOUT, reward=None)

    class Awaits(Waits):
        async def step(self, turn: ModelTurn) -> Outcome:
            return await asyncio.to_thread(super().step, turn)

    task = TalkTask(make=lambda prompt: Waits() if plain else Awaits())
    sampler = Tells("tells", ManualClock(), slots=1, tokens_per_step=1)
    with closing(EnvironmentHost(task, clock=SystemClock())) as host:
        found, _ = run_all(task, host, sampler, count=4)
    assert [episode.outcome for episode in found.values()] == [RIGHT] * 4


def test_an_environment_of_one_turn_lets_weights_change_while_it_answers() -> None:
    """Nothing more is drawn of an episode whose first turn is its last."""
    for turns, interactive in ((1, False), (2, True)):
        task = TalkTask(make=talker, limits=Limits(turns=turns, step_s=5.0, episode_s=120.0))
        with closing(EnvironmentHost(task, clock=SystemClock())) as host:
            assert host.interactive == interactive


class SingleTurn:
    """A task of one turn whose grader does as it is told."""

    name = "single"

    def __init__(self, grade) -> None:
        self.grade = grade


def test_verdicts_of_single_turns_come_beside_generation_and_wake_the_waiting() -> None:
    gate, woken = threading.Event(), threading.Event()

    def grade(prompt: Prompt, text: str) -> Outcome:
        assert gate.wait(PATIENCE_S)
        return Outcome(kind=OutcomeKind.VALUE, reward=float(text))

    task = SingleTurn(grade)
    with closing(EnvironmentHost(task, clock=SystemClock(), on_answer=woken.set)) as host:
        assert not host.interactive
        for number in range(3):
            host.answer((f"p{number}", number), TalkTask(make=talker).prompt(number), turn(text=str(number)))
        assert host.answered() == []  # nobody waits for the grader
        gate.set()
        answers = []
        while len(answers) < 3:
            assert host.wait(PATIENCE_S)
            answers += host.answered()
        assert woken.is_set()
    assert {key: end.outcome.reward for key, end in answers if isinstance(end, EpisodeEnd)} == {
        ("p0", 0): 0.0,
        ("p1", 1): 1.0,
        ("p2", 2): 2.0,
    }


def test_what_a_grader_falls_over_is_raised_where_answers_are_taken() -> None:
    def grade(prompt: Prompt, text: str) -> Outcome:
        raise RunFailed("the grader failed on each of its first 20 answers")

    with closing(EnvironmentHost(SingleTurn(grade), clock=SystemClock())) as host:
        host.answer(("p", 0), TalkTask(make=talker).prompt(0), turn())
        assert host.wait(PATIENCE_S)
        with pytest.raises(RunFailed, match="first 20 answers"):
            host.answered()


def test_environments_that_never_work_end_the_run() -> None:
    task = TalkTask(make=lambda prompt: AsyncTalker(prompt, "raises", 1, most_s=0.0))
    with closing(EnvironmentHost(task, clock=SystemClock())) as host, pytest.raises(RunFailed, match="environment of talk failed on each"):
        run_all(task, host, scripted(4), count=30)


def test_the_end_waits_for_nothing_that_hangs_and_closes_what_is_open() -> None:
    task = TalkTask(make=lambda prompt: (PlainTalker if int(prompt.id[1:]) % 2 else AsyncTalker)(prompt, "hangs", 1, most_s=0.0))
    host = EnvironmentHost(task, clock=SystemClock())
    for number in range(6):
        host.answer((f"n{number}", 0), task.prompt(number), turn())
    host.close()
    host.close()
    assert host.answered() == []
    assert set(Talker.closed.values()) <= {1}
    with pytest.raises(RunFailed, match="closed"):
        host.answer(("n9", 0), task.prompt(9), turn())
    assert not [thread for thread in threading.enumerate() if thread.name == "environments"]


def test_an_environment_that_does_not_close_is_told() -> None:
    told: list[str] = []

    class Told(NullEvents):
        def emit(self, role: str, kind: str, **fields: object) -> None:
            told.append(f"{role} {kind} {fields['detail']}")

    class Stuck:
        def start(self, prompt: Prompt) -> None: ...

        async def step(self, turn: ModelTurn) -> Outcome:
            return RIGHT

        async def close(self) -> None:
            raise OSError("it will not go")

    with closing(EnvironmentHost(TalkTask(make=lambda prompt: Stuck()), clock=SystemClock(), events=Told())) as host:
        host.answer(("n0", 0), TalkTask(make=talker).prompt(0), turn())
        assert host.wait(PATIENCE_S)
        assert len(host.answered()) == 1
    assert told == ["environment close_failed OSError: it will not go"]


def test_deadlines_that_contradict_each_other_are_refused_at_the_start() -> None:
    limits = Limits(turns=2, step_s=90.0, episode_s=60.0, lifetime_s=100.0)
    with pytest.raises(ConfigError) as refused:
        EnvironmentHost(TalkTask(make=talker, limits=limits), clock=SystemClock())
    assert [problem.field for problem in refused.value.problems] == ["task.step_seconds", "task.episode_seconds"]
    assert "lives 100 s" in str(refused.value)
    assert not Limits(turns=2, step_s=9.0, episode_s=39.0, lifetime_s=100.0).problems()
