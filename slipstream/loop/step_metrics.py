"""The row of metrics.jsonl for one learner step. Pure: from the batch, the learner's own figures and the phases' seconds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.records import Batch, FinishReason, OutcomeKind, Rollout
from slipstream.loop.sequences import zero_variance_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened between two steps, as differences of counters."""

    seconds: float  # since the last step ended
    learner_phases: Mapping[str, float]  # seconds by phase
    sampler_wait_s: float  # mean over samplers
    sampled_tokens: int


def batch_metrics(step: int, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Rewards, ages, lengths and verdicts of the batch of 0-based `step`.

    Lag of a token is step minus its version; age of a rollout is its largest lag.
    """
    rewards = np.array([rollout.outcome.reward for rollout in rollouts], np.float64)
    lags = step - np.concatenate([rollout.versions[rollout.loss_mask] for rollout in rollouts])
    ages = np.array([step - rollout.age_version for rollout in rollouts])
    styles = [rollout.outcome.style for rollout in rollouts]
    formats = [rollout.outcome.format_ok for rollout in rollouts if rollout.outcome.format_ok is not None]
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "age_max": int(ages.max()),
        "age_mean": float(ages.mean()),
        "lag_mean": float(lags.mean()),
        "mixed_version_share": float(np.mean([rollout.versions.min() != rollout.versions.max() for rollout in rollouts])),
        "completion_tokens_mean": float(np.mean([len(rollout.completion_ids) for rollout in rollouts])),
        "format_ok": float(np.mean(formats)) if formats else None,
        "style_share": float(np.mean([style == "worked" for style in styles])) if any(styles) else None,
        "truncated_share": float(np.mean([rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts])),
        "zero_variance_groups": zero_variance_groups(rollouts),
        "samples": len(rollouts),
    }


def episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Turns of the model, calls of tools, and the share of the completions' tokens that environments wrote.

    `side_turns_mean`: turns of the model, an episode, in conversations of an agent that are not trained.
    """
    turns = [np.count_nonzero(np.diff(rollout.loss_mask, prepend=False) & rollout.loss_mask) for rollout in rollouts]
    calls = np.array([rollout.outcome.calls for rollout in rollouts])
    masks = np.concatenate([rollout.loss_mask for rollout in rollouts])
    return {
        "turns_mean": float(np.mean(turns)),
        "calls_mean": float(calls.mean()),
        "call_share": float(np.mean(calls > 0)),
        "failed_call_share": sum(rollout.outcome.failed_calls for rollout in rollouts) / calls.sum() if calls.sum() else None,
        "environment_token_share": float(1 - masks.mean()),
        "side_turns_mean": float(np.mean([rollout.outcome.side_turns for rollout in rollouts])),
    }


def kept_metrics(now: tuple[int, int], before: tuple[int, int]) -> dict[str, float | None]:
    """Prompt tokens that the sampler computed since the last step, and the share of all that it found in pages kept of earlier turns.

    From the counters of both, then and now.
    """
    prefilled, reused = (new - old for new, old in zip(now, before, strict=True))
    return {"prefilled_tokens": prefilled, "reused_token_share": reused / (prefilled + reused) if prefilled + reused else None}


def outcome_counts(batch: Batch) -> dict[str, int]:
    """How many samples ended with each kind of outcome: those of the batch, and those without a verdict since the batch before."""
    unjudged = [rollout for rollout in batch.aside if rollout.outcome.reward is None]
    counts = Counter(rollout.outcome.kind.value for rollout in (*batch.rollouts, *unjudged))
    return {kind.value: counts[kind.value] for kind in OutcomeKind}


def refill_metrics(batch: Batch) -> dict[str, float]:
    """Groups without signal for which the step had further prompts instead, and the judged samples that went with them.

    Where groups grown too old were dropped, also those samples and their mean length: beside `completion_tokens_mean` it shows whom the
    staleness policy hits.
    """
    silent = len(batch.dropped) - batch.stale_samples
    stale = [len(rollout.completion_ids) for rollout in batch.dropped[silent:]]
    found = {"dropped_stale": len(stale), "stale_completion_tokens_mean": float(np.mean(stale))} if stale else {}
    return {"refilled_groups": batch.refilled_groups, "dropped_zero_variance": silent, **found}


def offpolicy_metrics(learned: Mapping[str, float], mismatch: float | None) -> dict[str, float]:
    """What of the step's off-policyness is mismatch and what is lag, mean |log-ratio| in nats; nothing where no audit was made.

    `offpolicy` of the learner's own figures holds both; the third part, `offpolicy_update`, is the learner's.
    """
    if mismatch is None or "offpolicy" not in learned:
        return {}
    return {"offpolicy_mismatch": mismatch, "offpolicy_lag": max(0.0, learned["offpolicy"] - mismatch)}


def interval_metrics(interval: Interval, learned: Mapping[str, float], peak_flops: float | None = None) -> dict[str, Any]:
    """Speeds and idle shares since the last step.

    `mfu`, model FLOP utilisation, is the useful operations a second of the learner's phase `step` as a share of `peak_flops`, what its
    devices reach in large matrix products; None where either is not known.
    """
    seconds, step_s = max(interval.seconds, 1e-9), interval.learner_phases.get("step", 0.0)
    most = step_s * (peak_flops or 0.0)
    return {
        "tokens_per_second": learned["tokens"] / seconds,
        "sampler_tokens_per_second": interval.sampled_tokens / seconds,
        "sampler_idle": min(1.0, interval.sampler_wait_s / seconds),
        "learner_idle": min(1.0, interval.learner_phases.get("wait", 0.0) / seconds),
        "mfu": learned["model_flops"] / most if most and "model_flops" in learned else None,
        "phase_seconds": {phase: round(value, 6) for phase, value in interval.learner_phases.items()},
    }
