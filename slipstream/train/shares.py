"""What one optimizer step is made of: each stream's share of the sequences, packed, every token with its weight. Pure.

Streams are packed apart: each is computed with a loss and a temperature of its own, and their gradients add up. Weights are
counted here, over the whole optimizer step, before anything is split into microbatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np

from slipstream.core.records import TrainingSequence
from slipstream.models.numerics import Numerics
from slipstream.train.columns import lay, sequence_weights
from slipstream.train.objectives import Objective
from slipstream.train.packing import Microbatch, Placed

Pack = Callable[[Sequence[TrainingSequence]], tuple[list[Microbatch], list[Placed]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """How the sequences of one stream are computed."""

    name: str
    objective: Objective
    temperature: jax.Array
    numerics: Numerics
    reducer: str = "token"
    sum_tokens: int = 1  # the constant of reducer `constant`
    weight: float = 1.0  # of the stream's loss in the step's
    needs_advantage: bool = False  # sequences without any are counted, and not computed on


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One stream's part of one optimizer step."""

    stream: Stream
    sequences: list[TrainingSequence]  # those computed on
    microbatches: list[Microbatch]
    placed: list[Placed]
    weights: list[np.ndarray]  # [rows, row_tokens] a microbatch


def minibatches(sequences: Sequence[TrainingSequence], parts: int) -> list[dict[str, list[TrainingSequence]]]:
    """`parts` optimizer steps, each with a contiguous share of every stream, equal to within one sequence."""
    streams: dict[str, list[TrainingSequence]] = {}
    for sequence in sequences:
        streams.setdefault(sequence.stream, []).append(sequence)
    found: list[dict[str, list[TrainingSequence]]] = [{} for _ in range(parts)]
    for name, members in streams.items():
        edges = [round(part * len(members) / parts) for part in range(parts + 1)]
        for part, (start, end) in zip(found, pairwise(edges), strict=True):
            part[name] = members[start:end]
    return found


def share(stream: Stream, sequences: Sequence[TrainingSequence], pack: Pack) -> Share:
    """The sequences of one optimizer step that belong to `stream`, ready to be computed."""
    weights = sequence_weights(sequences, stream.reducer, stream.sum_tokens)
    chosen = [index for index, one in enumerate(sequences) if one.advantages.any() or not stream.needs_advantage]
    computed = [sequences[index] for index in chosen]
    microbatches, placed = pack(computed)
    of_tokens = [np.where(sequences[index].loss_mask, np.float32(stream.weight * weights[index]), np.float32(0)) for index in chosen]
    laid = lay(of_tokens, placed, microbatches)
    return Share(stream=stream, sequences=computed, microbatches=microbatches, placed=placed, weights=laid)


def trained_tokens(sequences: Sequence[TrainingSequence]) -> int:
    """Tokens that are targets."""
    return int(sum(sequence.loss_mask.sum() for sequence in sequences))
