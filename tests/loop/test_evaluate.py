"""An evaluation is greedy, in order, of one version; its interval covers the truth as often as it says."""

from math import comb

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind, Prompt, SampleRequest, WeightVersion
from slipstream.loop.evaluate import evaluate, wilson_interval
from tests.loop.pure_run import FakeSampler, NumberTask

WEIGHTS = WeightVersion(lineage=0, version=6, params="w")


class Recorded(FakeSampler):
    """Remembers what it was asked."""

    def __init__(self, slots: int) -> None:
        super().__init__("evaluator", ManualClock(), slots, tokens_per_step=3)
        self.requests: list[SampleRequest] = []

    def submit(self, request: SampleRequest) -> None:
        self.requests.append(request)
        super().submit(request)


class EveryThird(NumberTask):
    """Every third prompt is answered rightly, every fifth has no verdict."""

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        number = int(prompt.id[1:])
        if number % 5 == 4:
            return Outcome(kind=OutcomeKind.TIMEOUT, reward=None)
        right = number % 3 == 0
        return Outcome(
            kind=OutcomeKind.VALUE if right else OutcomeKind.WRONG, reward=float(right), format_ok=right, style="worked" if right else ""
        )


def test_an_evaluation_is_greedy_in_order_and_of_one_version() -> None:
    task, sampler = EveryThird(), Recorded(slots=2)
    prompts = [task.prompt(index) for index in range(10)]
    result = evaluate(
        sampler=sampler, weights=WEIGHTS, prompts=prompts, grader=task, codec=task, task="numbers", max_new_tokens=8, samples_kept=3
    )
    assert sampler.version == 6
    assert {(request.temperature, request.max_new_tokens) for request in sampler.requests} == {(0.0, 8)}
    assert (result.step, result.task, result.n, result.pass_at_1) == (6, "numbers", 10, 0.3)  # 0, 3 and 6; 9 has no verdict
    assert [sample["prompt"] for sample in result.samples] == ["n0", "n1", "n2"]
    assert [sample["reward"] for sample in result.samples] == [1.0, 0.0, 0.0]
    assert result.extra["style_share"] == 0.3
    assert result.extra["format_ok"] == 3 / 8  # of those that were judged
    assert result.ci == wilson_interval(3, 10)


def test_the_answers_do_not_depend_on_the_number_of_slots() -> None:
    task = EveryThird()
    prompts = [task.prompt(index) for index in range(12)]
    results = [
        evaluate(
            sampler=Recorded(slots), weights=WEIGHTS, prompts=prompts, grader=task, codec=task, task="n", max_new_tokens=8, samples_kept=12
        )
        for slots in (1, 5, 12)
    ]
    assert results[0] == results[1] == results[2]


def test_nothing_to_evaluate_on_is_told() -> None:
    task = NumberTask()
    with pytest.raises(RunFailed, match="no held-out prompts"):
        evaluate(sampler=Recorded(1), weights=WEIGHTS, prompts=[], grader=task, codec=task, task="n", max_new_tokens=8, samples_kept=1)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (1, 1, 0.2065493, 1.0),
        (50, 100, 0.4038298, 0.5961702),
    ],
)
def test_the_interval_has_its_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=2e-5)


@pytest.mark.parametrize("trials", [16, 64, 256])
def test_the_interval_covers_the_true_share_nineteen_times_in_twenty(trials: int) -> None:
    """Exact coverage from the binomial distribution: 95 % on average over the shares, and nowhere far below."""
    shares = np.linspace(0.02, 0.98, 97)
    bounds = [wilson_interval(successes, trials) for successes in range(trials + 1)]
    coverage = []
    for share in shares:
        weights = [comb(trials, hits) * share**hits * (1 - share) ** (trials - hits) for hits in range(trials + 1)]
        coverage.append(sum(weight for weight, (low, high) in zip(weights, bounds, strict=True) if low <= share <= high))
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.012)
    assert min(coverage) > 0.88


def test_no_trials_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)
