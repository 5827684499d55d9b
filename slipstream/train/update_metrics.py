"""What optimizer steps that were made say of themselves: losses, norms, experts' load. Pure numpy; called by the learner only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import ROLLOUTS
from slipstream.train.shares import Share
from slipstream.train.update import TokenStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer step that was made."""

    statistics: list[list[TokenStatistics]]  # a list a share, an entry a microbatch
    grad_norm: float
    update_norm: float

    @property
    def moved(self) -> bool:
        """False where the gradient was zero or not finite, so that nothing changed."""
        return bool(np.isfinite(self.grad_norm)) and self.grad_norm > 0


def summed_loss(statistics: Sequence[TokenStatistics]) -> float:
    """Of all tokens, each with its weight."""
    return float(sum(np.asarray(part.loss).sum(dtype=np.float64) for part in statistics))


def losses(parts: Sequence[Sequence[Share]], updates: Sequence[Update]) -> dict[str, float]:
    """`loss` as it was minimised, mean over the optimizer steps; with static corpora that of each stream too, before its weight."""
    streams: dict[str, float] = {}
    total = 0.0
    for part, update in zip(parts, updates, strict=True):
        for of, statistics in zip(part, update.statistics, strict=True):
            loss = summed_loss(statistics) / len(parts)
            total += loss
            streams[of.stream.name] = streams.get(of.stream.name, 0.0) + loss / of.stream.weight
    static = streams.keys() - {ROLLOUTS}
    return {"loss": total} | ({f"loss_{name}": loss for name, loss in streams.items()} if static else {})


def update_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Norms, and how many optimizer steps changed nothing."""
    return {
        "grad_norm": float(np.max([update.grad_norm for update in updates])),
        "update_norm": max(update.update_norm for update in updates),
        "nonfinite_updates": float(sum(not np.isfinite(update.grad_norm) for update in updates)),
        "skipped_updates": float(sum(update.grad_norm == 0 for update in updates)),
    }


def value_loss(updates: Sequence[Update]) -> float:
    """Mean over the optimizer steps, before its coefficient."""
    losses = [one.value_loss for update in updates for many in update.statistics for one in many if one.value_loss is not None]
    return sum(float(np.asarray(loss).sum(dtype=np.float64)) for loss in losses) / len(updates)


def expert_metrics(loads: Sequence[np.ndarray]) -> dict[str, float]:
    """How unevenly the experts of a mixture are used: the busiest one's visits over the mean, worst layer; 1 = evenly."""
    total = np.sum(loads, axis=0) if loads else np.zeros((0, 0))
    return {"expert_load_max": float((total.max(axis=1) / total.mean(axis=1)).max())} if total.any() else {}
