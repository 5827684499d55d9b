"""What the learner knows of a microbatch's positions once the whole step is known, beside the packed batch itself. Pure numpy.

Made anew for each optimizer step; the packed batch stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.records import TrainingSequence
from slipstream.train.packing import Microbatch, Placed

Column = Any  # numpy or jax array [rows, row_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueColumns:
    """What a value head is taught. The settings are static: other programs are compiled for others."""

    returns: Column  # float32, the target of the value at the position
    before: Column | None  # float32, the value at the start of the step; None where nothing is clipped
    coefficient: float  # weight of the value loss in the token's
    clip: float  # how far from `before` a value may go; 0: anywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One device call's. None where the step needs no such column: other programs are compiled with and without."""

    weights: Column  # float32, the token's share in the step's loss; 0 where it is no target
    proximal: Column | None = None  # float32, log-prob at the start of the step; None: that of the current policy
    reference: Column | None = None  # float32, log-prob under the reference policy
    kept: Column | None = None  # bool, False where a correction over the whole batch left the token out
    corrected: Column | None = None  # bool, where corrections apply; None: everywhere
    clock: Any | None = None  # float32 [2]: version at the start of the step and now; asks for the interpolated proximal policy
    value: ValueColumns | None = None  # where a value head is trained


def lay(values: Sequence[np.ndarray], placed: Sequence[Placed], like: Sequence[Microbatch]) -> list[np.ndarray]:
    """Values of each sequence's tokens [tokens] where its positions are: [rows, row_tokens] a microbatch, 0 elsewhere.

    The inverse of `packing.unpack`: position i of a sequence gets the value of token i + 1, its target.
    """
    dtype = values[0].dtype if values else np.float32
    found = [np.zeros(microbatch.segment_ids.shape, dtype) for microbatch in like]
    for array, where in zip(values, placed, strict=True):
        own = array[where.first + 1 :]
        found[where.at.microbatch][where.at.row, where.at.start : where.at.start + len(own)] = own
    return found


def sequence_weights(sequences: Sequence[TrainingSequence], reducer: str, sum_tokens: int) -> list[float]:
    """The weight of each sequence's tokens in the loss of an optimizer step that is made of all of these sequences.

    token: 1 / all trained tokens. sequence: 1 / (the sequence's trained tokens * sequences that have any).
    constant: 1 / (sequences that have any * `sum_tokens`) (Liu et al. 2025, Dr. GRPO, arXiv 2503.20783, section 3.2).
    """
    lengths = [int(sequence.loss_mask.sum()) for sequence in sequences]
    trained = sum(length > 0 for length in lengths)
    if reducer == "token":
        return [1 / max(1, sum(lengths))] * len(lengths)
    return [1 / (max(1, trained) * (max(1, length) if reducer == "sequence" else sum_tokens)) for length in lengths]
