"""From rollouts and demonstrations to what a learner trains on. Pure."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from slipstream.core.records import ROLLOUTS, Demonstration, Rollout, TrainingSequence
from slipstream.loop.advantages import Advantage


def group_advantages(rollouts: Sequence[Rollout], rewards: np.ndarray, advantage: Advantage) -> np.ndarray:
    """One advantage a rollout from one reward a rollout; the rollouts of a group must stand together. A constant group gets exact zeros."""
    sizes = [len(list(group)) for _, group in groupby(rollouts, key=lambda rollout: rollout.group_id)]
    groups = np.split(np.asarray(rewards, np.float64), np.cumsum(sizes)[:-1]) if sizes else []
    return np.concatenate(advantage(groups)) if groups else np.zeros(0)


def zero_variance_groups(rollouts: Sequence[Rollout]) -> int:
    """Groups whose rewards are all equal: they carry no signal."""
    groups = groupby(rollouts, key=lambda rollout: rollout.group_id)
    return sum(len({rollout.outcome.reward for rollout in group}) == 1 for _, group in groups)


def from_rollout(rollout: Rollout, advantage: float | np.ndarray) -> TrainingSequence:
    """Prompt and completion in one; the loss falls on the tokens the model chose. `advantage`: of all, or of each completion token."""
    before = np.zeros(len(rollout.prompt_ids), np.float32)
    mask = np.concatenate([before.astype(bool), rollout.loss_mask])
    of_tokens = np.broadcast_to(np.float32(advantage), len(rollout.completion_ids))
    return TrainingSequence(
        token_ids=np.concatenate([rollout.prompt_ids, rollout.completion_ids]),
        loss_mask=mask,
        advantages=np.concatenate([before, np.where(rollout.loss_mask, of_tokens, np.float32(0))]),
        behaviour_logprobs=np.concatenate([before, np.where(rollout.loss_mask, rollout.logprobs, np.float32(0))]),
        versions=np.concatenate([np.full(len(before), -1, np.int32), np.where(rollout.loss_mask, rollout.versions, np.int32(-1))]),
        sampler_class=rollout.sampler_class,
    )


def from_demonstration(demonstration: Demonstration, stream: str = ROLLOUTS) -> TrainingSequence:
    """The loss falls on what the model is to say of the completion. `stream`: the corpus it is of."""
    shown = np.ones(len(demonstration.completion_ids), bool) if demonstration.loss_mask is None else demonstration.loss_mask
    tokens = np.concatenate([demonstration.prompt_ids, demonstration.completion_ids])
    nothing = np.zeros(len(tokens), np.float32)
    return TrainingSequence(
        token_ids=tokens,
        loss_mask=np.concatenate([np.zeros(len(demonstration.prompt_ids), bool), shown]),
        advantages=nothing,
        behaviour_logprobs=nothing,
        versions=np.full(len(tokens), -1, np.int32),
        stream=stream,
    )
