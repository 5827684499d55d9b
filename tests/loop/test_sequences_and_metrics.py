"""What the learner is given and what a row of metrics says, computed by hand for small batches."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.records import Demonstration, FinishReason, Outcome, OutcomeKind
from slipstream.loop.sequences import from_demonstration, from_rollout
from slipstream.loop.step_metrics import Interval, batch_metrics, interval_metrics
from tests.ledger.rollouts import make_rollout
from tests.loop.tickets import ticket


def test_a_rollout_becomes_prompt_and_completion_with_the_loss_on_what_the_model_chose() -> None:
    """The environment wrote the second of three completion tokens: it is context, and nothing of it may reach the loss."""
    rollout = replace(
        make_rollout(ticket(5), 0, [3, 3, 4]),
        prompt_ids=np.array([7, 8], np.int32),
        completion_ids=np.array([1, 2, 3], np.int32),
        logprobs=np.array([-0.25, -9.0, -0.5], np.float32),
        loss_mask=np.array([True, False, True]),
    )
    sequence = from_rollout(rollout, -1.5)
    assert sequence.token_ids.tolist() == [7, 8, 1, 2, 3]
    assert sequence.loss_mask.tolist() == [False, False, True, False, True]
    assert sequence.advantages.tolist() == [0.0, 0.0, -1.5, 0.0, -1.5]
    assert sequence.behaviour_logprobs.tolist() == [0.0, 0.0, -0.25, 0.0, -0.5]
    assert sequence.versions.tolist() == [-1, -1, 3, -1, 4]
    types = (sequence.token_ids, sequence.advantages, sequence.behaviour_logprobs, sequence.versions, sequence.loss_mask)
    assert [array.dtype for array in types] == [np.int32, np.float32, np.float32, np.int32, np.bool_]


def test_a_demonstration_is_trained_on_its_completion() -> None:
    shown = Demonstration(prompt_ids=np.array([4, 5, 6], np.int32), completion_ids=np.array([7, 0], np.int32))
    sequence = from_demonstration(shown)
    assert sequence.token_ids.tolist() == [4, 5, 6, 7, 0]
    assert sequence.loss_mask.tolist() == [False, False, False, True, True]
    assert sequence.versions.tolist() == [-1] * 5


def test_a_row_of_metrics_by_hand() -> None:
    worked = Outcome(kind=OutcomeKind.VALUE, reward=1.0, format_ok=True, style="worked")
    wrong = Outcome(kind=OutcomeKind.WRONG, reward=0.0, format_ok=True, style="terse")
    unread = Outcome(kind=OutcomeKind.UNPARSEABLE, reward=0.0, format_ok=False)
    rollouts = [
        make_rollout(ticket(0), 0, [3, 4], worked),
        make_rollout(ticket(0), 1, [4, 4, 4, 4], wrong),
        replace(make_rollout(ticket(1), 0, [5, 5], unread), finish_reason=FinishReason.LENGTH),
        make_rollout(ticket(1), 1, [5, 5, 5, 5], wrong),
    ]
    row = batch_metrics(5, rollouts)
    assert row == {
        "reward_mean": 0.25,
        "reward_std": pytest.approx(np.sqrt(3) / 4),
        "age_max": 2,
        "age_mean": pytest.approx((2 + 1 + 0 + 0) / 4),
        "lag_mean": pytest.approx((2 + 1 + 4 * 1) / 12),
        "mixed_version_share": 0.25,
        "completion_tokens_mean": 3.0,
        "format_ok": 0.75,
        "style_share": 0.25,
        "truncated_share": 0.25,
        "zero_variance_groups": 1,
        "samples": 4,
    }


def test_tasks_without_form_or_style_have_no_such_figures() -> None:
    row = batch_metrics(0, [make_rollout(ticket(0), sample, [0]) for sample in range(2)])
    assert (row["format_ok"], row["style_share"]) == (None, None)


def test_speeds_and_idle_shares_by_hand() -> None:
    interval = Interval(seconds=4.0, learner_phases={"wait": 1.0, "step": 3.0}, sampler_wait_s=0.5, sampled_tokens=200)
    assert interval_metrics(interval, {"tokens": 100.0, "model_flops": 6e9}, peak_flops=8e9) == {
        "tokens_per_second": 25.0,
        "sampler_tokens_per_second": 50.0,
        "sampler_idle": 0.125,
        "learner_idle": 0.25,
        "mfu": 0.25,
        "phase_seconds": {"wait": 1.0, "step": 3.0},
    }


def test_shares_stay_shares_when_clocks_disagree_a_little() -> None:
    row = interval_metrics(Interval(seconds=0.0, learner_phases={"wait": 0.1}, sampler_wait_s=0.1, sampled_tokens=0), {"tokens": 0.0})
    assert (row["learner_idle"], row["sampler_idle"], row["tokens_per_second"], row["mfu"]) == (1.0, 1.0, 0.0, None)
