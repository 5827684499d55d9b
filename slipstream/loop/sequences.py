"""From rollouts and demonstrations to what a learner trains on. Pure."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from slipstream.core.records import Demonstration, Rollout, TrainingSequence
from slipstream.loop.advantages import GroupAdvantage


def group_advantages(rollouts: Sequence[Rollout], advantage: GroupAdvantage) -> np.ndarray:
    """One advantage a rollout; the rollouts of a group must stand together. A constant group gets exact zeros."""
    found: list[np.ndarray] = []
    for _, group in groupby(rollouts, key=lambda rollout: rollout.group_id):
        rewards = np.array([rollout.outcome.reward for rollout in group], np.float64)
        found.append(advantage(rewards) if np.ptp(rewards) > 0 else np.zeros(len(rewards)))
    return np.concatenate(found) if found else np.zeros(0)


def zero_variance_groups(rollouts: Sequence[Rollout]) -> int:
    """Groups whose rewards are all equal: they carry no signal."""
    groups = groupby(rollouts, key=lambda rollout: rollout.group_id)
    return sum(len({rollout.outcome.reward for rollout in group}) == 1 for _, group in groups)


def from_rollout(rollout: Rollout, advantage: float) -> TrainingSequence:
    """Prompt and completion in one; the loss falls on the tokens the model chose."""
    before = np.zeros(len(rollout.prompt_ids), np.float32)
    mask = np.concatenate([before.astype(bool), rollout.loss_mask])
    return TrainingSequence(
        token_ids=np.concatenate([rollout.prompt_ids, rollout.completion_ids]),
        loss_mask=mask,
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        behaviour_logprobs=np.concatenate([before, np.where(rollout.loss_mask, rollout.logprobs, np.float32(0))]),
        versions=np.concatenate([np.full(len(before), -1, np.int32), rollout.versions]),
    )


def from_demonstration(demonstration: Demonstration) -> TrainingSequence:
    """The loss falls on the completion."""
    tokens = np.concatenate([demonstration.prompt_ids, demonstration.completion_ids])
    nothing = np.zeros(len(tokens), np.float32)
    return TrainingSequence(
        token_ids=tokens,
        loss_mask=np.arange(len(tokens)) >= len(demonstration.prompt_ids),
        advantages=nothing,
        behaviour_logprobs=nothing,
        versions=np.full(len(tokens), -1, np.int32),
    )
