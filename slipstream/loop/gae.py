"""Generalised advantage estimation from the values of a learned head (Schulman et al. 2015, arXiv 1506.02438). Pure numpy, float64 inside.

The steps of a sample are its trained tokens t_1 .. t_n: what an environment wrote between two of them belongs to the state in
which the later one is chosen, and takes no time. The whole reward comes with t_n, after which nothing has value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.core.records import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """How advantages are made of rewards and values."""

    gamma: float = 1.0  # discount a token
    decay: float = 1.0  # lambda: 1 is return less value, 0 the one-step error of the values
    whiten: bool = True  # mean 0 and deviation 1 over all trained tokens of the batch


def valued(
    sequences: Sequence[TrainingSequence], rewards: np.ndarray, values: Sequence[np.ndarray], settings: Gae
) -> list[TrainingSequence]:
    """The sequences with their advantages, and what the head is taught.

    rewards [sequences]; values [tokens] a sequence, each of the state in which the token is chosen, read at trained tokens only.
    The head's target, the return, is the advantage (before it is whitened) plus the value.
    """
    own = [np.asarray(array, np.float64)[one.loss_mask] for one, array in zip(sequences, values, strict=True)]
    advantages = token_advantages(rewards, own, settings)
    returns = [advantage + value for advantage, value in zip(advantages, own, strict=True)]
    if settings.whiten:
        advantages = whitened(advantages)
    return [
        replace(one, advantages=_spread(one, advantage), values=_spread(one, value), returns=_spread(one, to_come))
        for one, advantage, value, to_come in zip(sequences, advantages, own, returns, strict=True)
    ]


def token_advantages(rewards: np.ndarray, values: Sequence[np.ndarray], settings: Gae) -> list[np.ndarray]:
    """Advantages of the trained tokens of each sample, [tokens] like its `values` (eq. 16).

    With V_{n+1} = 0: error d_k = r_k + gamma V_{k+1} - V_k, advantage A_k = d_k + gamma lambda A_{k+1}. All samples are gone
    through together, from their last tokens back.
    """
    lengths = [len(array) for array in values]
    longest = max(lengths, default=0)
    backwards = np.zeros((len(lengths), longest))
    for row, array in zip(backwards, values, strict=True):
        row[: len(array)] = array[::-1]
    found = np.zeros_like(backwards)
    reward, later_value, later = np.asarray(rewards, np.float64), np.zeros(len(lengths)), np.zeros(len(lengths))
    for column in range(longest):
        value = backwards[:, column]
        later = reward + settings.gamma * later_value - value + settings.gamma * settings.decay * later
        found[:, column] = later
        reward, later_value = np.zeros(len(lengths)), value
    return [row[:length][::-1] for row, length in zip(found, lengths, strict=True)]


def whitened(advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """(A - mean) / (deviation + 1e-6), both over all tokens of all samples; exact zeros where all are equal."""
    every = np.concatenate([*advantages, np.zeros(0)])
    if len(every) == 0 or np.ptp(every) == 0:
        return [np.zeros(len(array)) for array in advantages]
    return [(array - every.mean()) / (every.std() + 1e-6) for array in advantages]


def _spread(sequence: TrainingSequence, of_trained: np.ndarray) -> np.ndarray:
    """Float32 [tokens], 0 where the token is not trained on."""
    found = np.zeros(len(sequence.loss_mask), np.float32)
    found[sequence.loss_mask] = of_trained
    return found
