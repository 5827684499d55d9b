"""The columns of a step's rollouts: what each microbatch is given beside the packed batch, and what is told of it afterwards.

Log-probs at the start of the step are scored here, before the first update, where anything needs them.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from slipstream.config.schema import CorrectionSection, ObjectiveSection, RunConfig
from slipstream.core.records import ROLLOUTS, TrainingSequence
from slipstream.train.columns import Columns, ValueColumns, lay
from slipstream.train.objectives import loss_uses_reference, uses_proximal
from slipstream.train.packing import Microbatch
from slipstream.train.second_moment import second_moment_mask
from slipstream.train.shares import Share
from slipstream.train.statistics import TokenTable
from slipstream.train.update import TokenStatistics

Score = Callable[[Microbatch], jax.Array]


class StepColumns:
    """One step's. Made before its first update; `rollouts` holds the share of rollouts of each optimizer step, in order."""

    def __init__(self, config: RunConfig, version: int, rollouts: Sequence[Share], score: Score) -> None:
        self._version, self._correction = version, config.correction
        self._objective = config.objective
        self._uses_reference = loss_uses_reference(config.objective)
        several = config.batch.minibatches > 1 and uses_proximal(config.objective, config.correction)
        self._interpolates = several and config.objective.proximal == "interpolated"
        scored = (several and not self._interpolates) or config.correction.second_moment > 0
        self._start = [[score(batch) if scored else None for batch in of.microbatches] for of in rollouts]
        self._corrected = [_corrected(of, config.correction) for of in rollouts]
        self._kept = self._second_moment(rollouts) if config.correction.second_moment else None

    def of(self, share: Share, number: int, parts: int) -> list[Columns]:
        """Of the microbatches of optimizer step `number` of `parts`."""
        if share.stream.name != ROLLOUTS:
            return [Columns(weights=weights) for weights in share.weights]
        reference = _reference(share) if self._uses_reference else None
        value = _value(share, self._objective) if self._objective.advantage == "gae" else None
        clock = np.array([self._version, self._version + number / parts], np.float32) if self._interpolates else None
        return [
            Columns(
                weights=share.weights[place],
                proximal=self._start[number][place],
                reference=reference[place] if reference is not None else None,
                kept=self._kept[number][place] if self._kept is not None else None,
                corrected=self._corrected[number][place] if self._correction.classes else None,
                clock=clock,
                value=value[place] if value is not None else None,
            )
            for place in range(len(share.microbatches))
        ]

    def start(self, number: int) -> Sequence[jax.Array | None]:
        """Log-probs at the start of the step of optimizer step `number`'s microbatches, where they were scored."""
        return self._start[number]

    def _second_moment(self, rollouts: Sequence[Share]) -> list[list[np.ndarray]]:
        """M2PO's mask over all corrected tokens of the step."""
        kept: list[list[np.ndarray]] = []
        gaps: list[np.ndarray] = []
        for of, start, corrected in zip(rollouts, self._start, self._corrected, strict=True):
            masks = [(weights > 0) & where for weights, where in zip(of.weights, corrected, strict=True)]
            near = zip(start, of.microbatches, masks, strict=True)
            gaps += [np.asarray(logprobs)[mask] - batch.behaviour_logprobs[mask] for logprobs, batch, mask in near]
            kept.append(masks)
        whole = second_moment_mask(np.concatenate(gaps) if gaps else np.zeros(0), self._correction.second_moment)
        taken = 0
        for masks in kept:
            for mask in masks:
                count = int(mask.sum())
                mask[mask] = whole[taken : taken + count]
                taken += count
        return kept


def token_table(share: Share, statistics: Sequence[TokenStatistics], start: Sequence[jax.Array | None], first: bool) -> TokenTable:
    """The trained tokens of a share of rollouts. In the `first` optimizer step the current policy is that of the step's start."""
    masks = [weights > 0 for weights in share.weights]

    def gather(arrays: Sequence[np.ndarray | jax.Array]) -> np.ndarray:
        return np.concatenate([np.asarray(array)[mask] for array, mask in zip(arrays, masks, strict=True)] or [np.zeros(0, np.float32)])

    current = gather([part.logprobs for part in statistics])
    unknown = np.full(len(current), np.nan, np.float32)
    scored = [array for array in start if array is not None]
    reference = _reference(share) if all(one.reference_logprobs is not None for one in share.sequences) else None
    return TokenTable(
        current=current,
        start=current if first else gather(scored) if scored else unknown,
        behaviour=gather([batch.behaviour_logprobs for batch in share.microbatches]),
        reference=gather(reference) if reference is not None else unknown,
        entropy=gather([part.entropy for part in statistics]),
        clipped=gather([part.clipped for part in statistics]),
        masked=gather([part.masked for part in statistics]),
    )


def _corrected(share: Share, settings: CorrectionSection) -> list[np.ndarray]:
    """Which positions are of a sampler class that is corrected."""
    chosen = [not settings.classes or one.sampler_class in settings.classes for one in share.sequences]
    values = [np.full(len(one.token_ids), yes) for one, yes in zip(share.sequences, chosen, strict=True)]
    return lay(values, share.placed, share.microbatches)


def _value(share: Share, settings: ObjectiveSection) -> list[ValueColumns]:
    if any(one.values is None or one.returns is None for one in share.sequences):
        raise ValueError("the value head needs each sequence's values and returns, and one has none; see loop.gae.valued")
    returns = lay([one.returns for one in share.sequences if one.returns is not None], share.placed, share.microbatches)
    before = lay([one.values for one in share.sequences if one.values is not None], share.placed, share.microbatches)
    clip = settings.value_clip
    return [
        ValueColumns(returns=target, before=old if clip else None, coefficient=settings.value_coefficient, clip=clip)
        for target, old in zip(returns, before, strict=True)
    ]


def _reference(share: Share) -> list[np.ndarray]:
    return lay([_scored(one) for one in share.sequences], share.placed, share.microbatches)


def _scored(sequence: TrainingSequence) -> np.ndarray:
    if sequence.reference_logprobs is None:
        raise ValueError("the objective needs log-probs under the reference, and a sequence has none; see Learner.reference_logprobs")
    return sequence.reference_logprobs
