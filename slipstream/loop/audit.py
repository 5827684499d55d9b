"""Mismatch: samplers' log-probs against the learner's at the very weights that drew. Lag has no part in it. Called by `loop.learn`.

Looked at are a few rollouts of each batch that have one version, which is still in the store; all samplers have their turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from slipstream.core.ports import Learner, WeightStore
from slipstream.core.records import Rollout, RolloutRatio, TrainingSequence

AUDITED_SEQUENCES = 8  # of a batch
OnRatios = Callable[[Sequence[RolloutRatio]], None]
_MOST_NATS = 50.0  # of a log-ratio: sums stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What an audit found; empty where no rollout could be looked at."""

    metrics: dict[str, float]
    ratios: tuple[RolloutRatio, ...] = ()


def audit(learner: Learner, store: WeightStore, rollouts: Sequence[Rollout], sequences: Sequence[TrainingSequence]) -> Audited:
    """`sequences`: those of the rollouts, in their order."""
    whole = [place for place, rollout in enumerate(rollouts) if _has_one_version(rollout, store.has)]
    chosen = list(islice(_by_turns(whole, lambda place: rollouts[place].sampler_id), AUDITED_SEQUENCES))
    gaps: list[np.ndarray] = []
    ratios: list[RolloutRatio] = []
    for version in sorted({rollouts[place].age_version for place in chosen}):
        places = [place for place in chosen if rollouts[place].age_version == version]
        scored = learner.score([sequences[place] for place in places], store.get(version))
        for place, logprobs in zip(places, scored, strict=True):
            gap = (logprobs - sequences[place].behaviour_logprobs)[sequences[place].loss_mask]
            gaps.append(np.abs(gap))
            ratios.append(_ratio(rollouts[place], gap))
    if not gaps:
        return Audited(metrics={})
    every = np.concatenate(gaps)
    metrics = {"mismatch_abs_max": float(every.max()), "mismatch_abs_mean": float(every.mean()), "mismatch_tokens": float(len(every))}
    return Audited(metrics=metrics, ratios=tuple(ratios))


def _ratio(rollout: Rollout, gap: np.ndarray) -> RolloutRatio:
    """`gap`: log-probs of its tokens, the learner's less the sampler's."""
    values = np.exp(np.minimum(gap.astype(np.float64), _MOST_NATS))
    return RolloutRatio(
        sampler=rollout.sampler_id,
        claimed_s=rollout.claimed_s,
        version=rollout.age_version,
        tokens=len(values),
        total=float(values.sum()),
        squares=float(np.square(values).sum()),
    )


def _has_one_version(rollout: Rollout, stored: Callable[[int], bool]) -> bool:
    return rollout.versions.min() == rollout.versions.max() and stored(rollout.age_version)


def _by_turns(places: Sequence[int], sampler_of: Callable[[int], str]) -> list[int]:
    """Each sampler's first, then each one's second, and so on."""
    seen: dict[str, int] = {}
    turn: list[tuple[int, int]] = []
    for place in places:
        name = sampler_of(place)
        turn.append((seen.get(name, 0), place))
        seen[name] = seen.get(name, 0) + 1
    return [place for _, place in sorted(turn)]
