"""What a step teaches beside verdicts: rows of corpora, log-probs under the reference, rewards less its KL; steps without rollouts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.records import Batch, Demonstration, Outcome, OutcomeKind, Rollout, TrainingSequence, WeightVersion
from slipstream.loop.advantages import ADVANTAGES
from slipstream.loop.gae import Gae
from slipstream.loop.learn import Learn, Lessons, SamplerCounters, StepReport
from slipstream.loop.phases import Phases
from slipstream.loop.rewards import Shaping
from slipstream.telemetry.events import NullEvents
from tests.ledger.rollouts import make_rollout
from tests.loop.tickets import ticket


class Learner:
    """Remembers what it was given; everything has log-prob -0.5, and -1.5 under the reference."""

    version = 0
    given: Sequence[TrainingSequence] = ()

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        self.given, self.version = sequences, self.version + 1
        return {"tokens": 1.0, "offpolicy": 0.75}

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion) -> list[np.ndarray]:
        return [np.full(len(one.token_ids), -0.5, np.float32) for one in sequences]

    def reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        return [np.full(len(one.token_ids), -1.5, np.float32) for one in sequences]

    def values(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        return [np.full(len(one.token_ids), 0.25, np.float32) for one in sequences]

    def weights(self) -> WeightVersion:
        return WeightVersion(lineage=0, version=self.version, params=None)


class Ledger:
    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts, self.committed = tuple(rollouts), []

    def batch(self, step: int) -> Batch | None:
        return Batch(step=step, rollouts=self.rollouts) if self.rollouts else None

    def commit(self, step: int) -> None:
        self.committed.append(step)


class Store:
    def publish(self, weights: WeightVersion) -> None: ...

    def has(self, version: int) -> bool:
        return version == 0

    def get(self, version: int) -> WeightVersion:
        return WeightVersion(lineage=0, version=version, params=None)


class Corpus:
    name = "shown"

    def rows(self, step: int) -> list[Demonstration]:
        return [Demonstration(prompt_ids=np.array([step], np.int32), completion_ids=np.array([7, 8], np.int32))]


def turn(lessons: Lessons, rollouts: Sequence[Rollout]) -> tuple[Learner, Ledger, StepReport]:
    learner, ledger, clock = Learner(), Ledger(rollouts), ManualClock()
    learn = Learn(
        learner=learner,
        ledger=ledger,
        store=Store(),
        lessons=lessons,
        audit_every=1,
        counters=SamplerCounters(tokens=lambda: 0, wait_s=lambda: 0.0),
        phases=Phases("learner", clock, NullEvents()),
        events=NullEvents(),
        clock=clock,
    )
    report = learn.turn()
    assert report is not None
    return learner, ledger, report


def rollouts(lengths: Sequence[int]) -> list[Rollout]:
    """One group, all with reward 1, log-prob -0.25 a token."""
    right = Outcome(kind=OutcomeKind.VALUE, reward=1.0)
    made = [make_rollout(ticket(0), index, [0] * length, right) for index, length in enumerate(lengths)]
    return [replace(one, logprobs=np.full(len(one.completion_ids), -0.25, np.float32)) for one in made]


def test_a_kl_in_the_reward_makes_longer_samples_worse_and_the_step_has_the_corpus_rows() -> None:
    """KL 1.25 nats a token, coefficient 0.1: rewards 1 - 0.25 and 1 - 0.5; leave-one-out differences +-0.25."""
    shaping = Shaping(kl_coefficient=0.1, kl_estimator="k1")
    lessons = Lessons(advantage=ADVANTAGES["rloo"], shaping=shaping, scores_reference=True, corpora=(Corpus(),))
    learner, ledger, report = turn(lessons, rollouts([2, 4]))
    *sampled, shown = learner.given
    assert [float(one.advantages.max() + one.advantages.min()) for one in sampled] == pytest.approx([0.25, -0.25])
    assert {one.stream for one in sampled} == {"rl"}
    assert all(one.reference_logprobs is not None and one.sampler_class for one in sampled)
    assert (shown.stream, shown.token_ids.tolist(), shown.loss_mask.tolist()) == ("shown", [0, 7, 8], [False, True, True])
    assert ledger.committed == [0]
    assert report.metrics["reward_mean"] == 1.0  # the verdicts'
    assert report.metrics["offpolicy_mismatch"] == pytest.approx(0.25)
    assert report.metrics["offpolicy_lag"] == pytest.approx(0.5)


def test_values_make_an_advantage_a_token_and_what_the_head_is_taught() -> None:
    """Reward 1, values 0.25, gamma 0.5, lambda 0: the last token 1 - 0.25, those before 0.125 - 0.25; the report has a sample's mean."""
    lessons = Lessons(advantage=Gae(gamma=0.5, decay=0.0, whiten=False), scores_reference=True)
    learner, _, report = turn(lessons, rollouts([2, 3]))
    short, long = learner.given
    assert short.advantages[-2:].tolist() == [-0.125, 0.75]
    assert long.advantages[-3:].tolist() == [-0.125, -0.125, 0.75]
    assert short.returns is not None
    assert short.returns[-2:].tolist() == [0.125, 1.0]
    assert short.values is not None
    assert short.values[-2:].tolist() == [0.25, 0.25]
    assert long.reference_logprobs is not None
    assert report.advantages.tolist() == pytest.approx([0.3125, 0.5 / 3])


def test_steps_without_rollouts_ask_the_ledger_for_nothing() -> None:
    learner, ledger, report = turn(Lessons(advantage=ADVANTAGES["rloo"], corpora=(Corpus(),), samples=False), [])
    assert [one.stream for one in learner.given] == ["shown"]
    assert (ledger.committed, report.metrics["step"], "reward_mean" in report.metrics) == ([], 1, False)


def test_an_advantage_may_be_one_a_token() -> None:
    from slipstream.loop.sequences import from_rollout

    (rollout,) = rollouts([3])
    sequence = from_rollout(replace(rollout, loss_mask=np.array([True, False, True])), np.array([1.0, 2.0, 3.0]))
    assert sequence.advantages[-3:].tolist() == [1.0, 0.0, 3.0]
