"""Episodes: the next turn's prompt is the ids so far and what was said, draws never repeat, nothing depends on company or order."""

from dataclasses import replace
from random import Random
from unittest.mock import Mock

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.ports import EpisodeKey
from slipstream.core.records import Batch, EnvironmentTurn, EpisodeEnd, ModelTurn, Outcome, OutcomeKind, Prompt, SampleRequest
from slipstream.core.rng import key_words, stream_seed
from slipstream.loop.collect import Collector, sample_seed
from slipstream.loop.dispatch import Dispatch, SamplingRules
from slipstream.loop.episodes import Episode, Episodes, turn_seed
from slipstream.loop.step_metrics import batch_metrics, episode_metrics, kept_metrics, outcome_counts
from slipstream.telemetry.events import NullEvents
from tests.ledger.rollouts import make_rollout
from tests.loop.at_once import Chatty
from tests.loop.pure_run import FakeSampler, NumberTask
from tests.loop.tickets import ticket

TASK = NumberTask()


class Asked(FakeSampler):
    """Remembers its requests by key, in order."""

    def __init__(self, slots: int, speed: int = 3) -> None:
        super().__init__("asked", ManualClock(), slots, speed)
        self.version, self.requests = 4, dict[EpisodeKey, list[SampleRequest]]()

    def submit(self, request: SampleRequest) -> None:
        self.requests.setdefault(request.key, []).append(request)
        super().submit(request)


class Scripted:
    """As many turns of the environment as the prompt's number says, each of two tokens; then the verdict."""

    interactive = True

    def __init__(self, chance: Random) -> None:
        self._chance, self._turns, self._ready = chance, dict[EpisodeKey, int](), list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]()
        self.closed = False

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        number = self._turns[key] = self._turns.get(key, 0) + 1
        if number > int(prompt.id[1:]) % 4 or turn.room < 3:
            end = EpisodeEnd(outcome=Outcome(kind=OutcomeKind.VALUE, reward=1.0), finish_reason=turn.finish_reason)
            self._ready.append((key, end))
        else:
            self._ready.append((key, EnvironmentTurn(token_ids=np.array([90 + number, len(turn.token_ids)], np.int32))))

    def answered(self) -> list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]:
        self._chance.shuffle(self._ready)
        count = self._chance.randint(0, len(self._ready))
        now, self._ready = self._ready[:count], self._ready[count:]
        return now

    def wait(self, timeout_s: float) -> bool:
        return bool(self._ready)

    def close(self) -> None:
        self.closed = True


def first_request(index: int, most: int = 40) -> tuple[Prompt, SampleRequest]:
    prompt = TASK.prompt(index)
    key = (prompt.id, 0)
    return prompt, SampleRequest(
        key=key, prompt_ids=prompt.token_ids, seed=stream_seed(0, prompt.id), max_new_tokens=most, temperature=1.0, stop_ids=(0,)
    )


def finished(slots: int, speed: int, chance: int, count: int = 24) -> tuple[dict[EpisodeKey, Episode], Asked]:
    sampler = Asked(slots, speed)
    episodes = Episodes(sampler, Scripted(Random(chance)), TASK)
    for index in range(count):
        episodes.begin(*first_request(index))
    found: dict[EpisodeKey, Episode] = {}
    while episodes.open:
        for episode in episodes.run():
            assert episode.sample.key not in found
            found[episode.sample.key] = episode
    assert episodes.unanswered == 0
    assert episodes.tokens == sum(int(one.loss_mask.sum()) for one in found.values())
    return found, sampler


def test_each_turn_begins_with_the_ids_so_far_and_one_rollout_holds_them_all() -> None:
    found, sampler = finished(slots=5, speed=2, chance=1)
    several = 0
    for key, episode in found.items():
        whole, asked = episode.sample, sampler.requests[key]
        place, said = 0, []
        for turn, request in enumerate(asked):
            assert request.prompt_ids.tolist() == [*episode.prompt.token_ids.tolist(), *whole.completion_ids[:place].tolist()]
            assert request.max_new_tokens == 40 - place  # the limit is the episode's
            drawn = own_tokens(request)
            assert whole.completion_ids[place : place + len(drawn)].tolist() == drawn
            assert episode.loss_mask[place : place + len(drawn)].all()
            place += len(drawn)
            if turn + 1 < len(asked):
                assert whole.completion_ids[place : place + 2].tolist() == [91 + turn, len(drawn)]
                said += [place, place + 1]
                place += 2
        assert place == len(whole.completion_ids) == len(whole.logprobs) == len(whole.versions)
        assert np.flatnonzero(~episode.loss_mask).tolist() == said
        assert not whole.logprobs[said].any()
        assert (whole.versions == 4).all()
        assert len(asked) == 1 + int(key[0][1:]) % 4 or 40 - place < 3
        several += len(asked) > 2
    assert several > 5


def own_tokens(request: SampleRequest) -> list[int]:
    """What the fake sampler draws: a function of the seed, the place in the turn and the version."""
    drawn: list[int] = []
    while len(drawn) < request.max_new_tokens and (not drawn or drawn[-1] != 0):
        drawn.append(key_words(request.seed, "token", len(drawn), 4)[0] % 7)
    return drawn


def test_an_episode_is_the_same_in_any_company_and_order_of_answers() -> None:
    one, other = finished(slots=1, speed=1, chance=3)[0], finished(slots=24, speed=5, chance=4)[0]
    for key, episode in one.items():
        for name in ("completion_ids", "logprobs", "versions"):
            assert np.array_equal(getattr(episode.sample, name), getattr(other[key].sample, name)), (key, name)
        assert np.array_equal(episode.loss_mask, other[key].loss_mask)


def test_turns_have_seeds_of_their_own() -> None:
    _, sampler = finished(slots=3, speed=3, chance=0)
    seeds = [request.seed for asked in sampler.requests.values() for request in asked]
    assert len(set(seeds)) == len(seeds)
    assert turn_seed(77, 0) == 77  # a sample of one turn draws as it always has
    for index in range(24):
        assert sampler.requests[(f"n{index}", 0)][0].seed == first_request(index)[1].seed


def test_an_episode_that_waits_for_its_environment_holds_no_slot() -> None:
    sampler, environments = Asked(slots=2), Scripted(Random(0))
    environments.answered = list
    episodes = Episodes(sampler, environments, TASK)
    for index in range(6):
        episodes.begin(*first_request(index))
    while episodes.busy:
        assert episodes.step() == []
    assert (episodes.unanswered, episodes.open, sampler.free_slots()) == (6, 6, 2)
    assert 0 < episodes.overlapped < episodes.steps  # the first turns were being answered while the last were drawn
    assert episodes.drawing


def test_an_answer_without_room_to_go_on_is_a_fault_of_the_host() -> None:
    environments = Scripted(Random(0))
    episodes = Episodes(Asked(slots=1), environments, TASK)
    prompt, request = first_request(1, most=4)
    episodes.begin(prompt, request)
    environments.answer = lambda key, prompt, turn: environments._ready.append(
        (key, EnvironmentTurn(token_ids=np.arange(9, dtype=np.int32)))
    )
    with pytest.raises(ValueError, match="an environment's turn of 9 tokens leaves room for"):
        drained(episodes)


def drained(episodes: Episodes) -> None:
    while episodes.open:
        episodes.run()


class Kept:
    """A ledger that grants one ticket, and keeps what is handed in."""

    def __init__(self) -> None:
        self.tickets, self.rollouts = [ticket(2, samples=4)], []

    def claim(self, worker, tickets, loaded_version):
        granted, self.tickets = self.tickets, []
        return granted

    def submit(self, rollouts) -> None:
        self.rollouts += rollouts


@pytest.mark.parametrize("drain", [True, False])
def test_at_a_stop_what_is_judged_in_time_is_handed_in(drain: bool) -> None:
    sampler, ledger = Asked(slots=4), Kept()
    environments = Chatty(TASK, Mock(randint=lambda low, high: 0, shuffle=lambda values: None))  # says nothing yet
    environments.interactive = False
    rules = SamplingRules(seed=0, group_size=4, max_new_tokens=8, temperature=1.0, pinned=False)
    collector = Collector(run_id="run", seed=0, lineage=0, sampler_id="s", sampler_class="c", codec=TASK)
    clock = ManualClock()
    dispatch = Dispatch(
        sampler=sampler,
        environments=environments,
        ledger=ledger,
        store=Mock(newest=lambda: -1),
        collector=collector,
        rules=rules,
        phases=Mock(),
        events=NullEvents(),
        clock=clock,
    )
    sampler_seeds = {sample_seed(0, ledger.tickets[0], sample) for sample in range(4)}
    while dispatch.turn():
        pass
    assert (dispatch.episodes.unanswered, ledger.rollouts) == (4, [])
    environments._chance = Mock(randint=lambda low, high: high, shuffle=lambda values: None)
    dispatch.close(drain=drain)
    assert {rollout.seed for rollout in ledger.rollouts} == (sampler_seeds if drain else set())
    assert (dispatch.episodes.unanswered, dispatch.episodes.open) == (0, 0)


def test_metrics_of_episodes_and_outcomes_by_hand() -> None:
    asked = Outcome(kind=OutcomeKind.VALUE, reward=1.0, calls=3, failed_calls=1, side_turns=4)
    mask = np.array([True, True, False, False, True, False, True])
    spoken = replace(make_rollout(ticket(0), 0, [1] * 7, asked), loss_mask=mask)
    silent = make_rollout(ticket(0), 1, [1], Outcome(kind=OutcomeKind.WRONG, reward=0.0))
    assert episode_metrics([spoken, silent]) == {
        "turns_mean": 2.0,
        "calls_mean": 1.5,
        "call_share": 0.5,
        "failed_call_share": pytest.approx(1 / 3),
        "environment_token_share": pytest.approx(3 / 8),
        "side_turns_mean": 2.0,
    }
    assert episode_metrics([silent])["failed_call_share"] is None
    assert kept_metrics((70, 50), (10, 30)) == {"prefilled_tokens": 60, "reused_token_share": 0.25}
    assert kept_metrics((70, 50), (70, 50))["reused_token_share"] is None
    lagging = replace(spoken, versions=np.array([1, 1, 1, 1, 2, 2, 3], np.int32))
    assert batch_metrics(3, [lagging])["lag_mean"] == (2 + 2 + 1 + 0) / 4  # of the model's tokens
    late = replace(spoken, outcome=Outcome(kind=OutcomeKind.TIMEOUT, reward=None))
    counts = outcome_counts(Batch(step=0, rollouts=(spoken, silent), aside=(late, late, spoken)))  # the last was drawn anew
    assert counts == {"value": 1, "wrong": 1, "unparseable": 0, "timeout": 2, "infrastructure": 0}
