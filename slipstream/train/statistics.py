"""Figures of one learner step from its rollouts' tokens: pure numpy over 1-D arrays of the tokens that were computed on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from slipstream.core.records import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """Each array [tokens]; NaN where a log-prob is not known."""

    current: np.ndarray  # log-prob under the weights that the token's minibatch was computed with
    start: np.ndarray  # under those at the start of the step
    behaviour: np.ndarray  # when drawn
    reference: np.ndarray  # under the reference policy
    entropy: np.ndarray  # of the whole distribution
    clipped: np.ndarray  # 1 where a bound acted
    masked: np.ndarray  # 1 where left out


def joined(tables: Sequence[TokenTable]) -> TokenTable:
    """All rows in one table."""
    names = [field.name for field in fields(TokenTable)]
    return TokenTable(**{name: np.concatenate([getattr(table, name) for table in tables] or [np.zeros(0)]) for name in names})


def step_statistics(tokens: TokenTable) -> dict[str, float]:
    """Entropy and the sampled tokens' NLL, importance ratio, effective sample size, shares clipped and left out, KL, off-policyness.

    ratio r = pi_current / pi_behaviour; ess = (sum r)^2 / (n sum r^2), 1 when all ratios are equal. `offpolicy` is the mean
    |log(pi_start / pi_behaviour)|: mismatch and lag together; `offpolicy_update` the mean |log(pi_current / pi_start)|, what earlier
    minibatches moved. `kl` is the mean k3 estimate of KL(current || reference). NaN where no token tells.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a sampler's log-probs may be anything; infinities are shown as they are
        current = tokens.current.astype(np.float64)
        ratio = np.exp(current - tokens.behaviour)
        gap = current - tokens.reference
        return {
            "entropy": _mean(tokens.entropy),
            "nll": _mean(-current),
            **_ratio_figures(ratio),
            "clip_fraction": _mean(tokens.clipped),
            "mask_fraction": _mean(tokens.masked),
            "offpolicy": _mean_of_known(np.abs(tokens.start.astype(np.float64) - tokens.behaviour), tokens.start),
            "offpolicy_update": _mean_of_known(np.abs(current - tokens.start), tokens.start),
            "kl": _mean_of_known(np.expm1(-gap) + gap, tokens.reference),
        }


def value_statistics(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """How well the values at the start of the step foretold the returns: 1 - Var(returns - values) / Var(returns) over all trained tokens.

    1: exactly; 0: as well as any constant; below: worse. NaN where all returns are equal, or there are none.
    """
    taught = [(one.loss_mask, one.values, one.returns) for one in sequences if one.values is not None and one.returns is not None]
    returns = np.concatenate([np.zeros(0), *(array[mask] for mask, _, array in taught)])
    errors = returns - np.concatenate([np.zeros(0), *(array[mask] for mask, array, _ in taught)])
    known = len(returns) > 0 and np.ptp(returns) > 0
    return {"value_explained_variance": float(1 - errors.var() / returns.var()) if known else float("nan")}


def _mean(values: np.ndarray) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else float("nan")


def _mean_of_known(values: np.ndarray, known: np.ndarray) -> float:
    return _mean(values[~np.isnan(known)])


def _ratio_figures(ratio: np.ndarray) -> dict[str, float]:
    if not len(ratio):
        return dict.fromkeys(("ratio_mean", "ratio_std", "ratio_p99", "ess"), float("nan"))
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_std": float(ratio.std()),
        "ratio_p99": float(np.quantile(ratio, 0.99)),
        "ess": float(ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())),
    }
