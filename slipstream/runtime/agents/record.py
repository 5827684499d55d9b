"""What an agent asked the model and got, as a tree: a turn's parent is the earlier turn that its prompt goes on from, id by id.

A chain from a root to a leaf is one conversation. The longest is the episode's rollout; the others are counted. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from slipstream.core.records import Sample
from slipstream.text.conversation import Conversation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # arrays have no one equality
class Said:
    """What a request asked the model to go on from."""

    parent: "Turn | None"  # None: it began a conversation
    prompt_ids: np.ndarray  # int32, all of them
    conversation: Conversation | None = None  # of a chat: at the model's turn
    messages: tuple[str, ...] = ()  # of a chat: each as the agent has it, in `plan.canonical` form
    text: str | None = None  # of a completion asked for in text: the prompt

    @property
    def depth(self) -> int:
        """Turns of the model before it."""
        return 0 if self.parent is None else self.parent.said.depth + 1

    @property
    def opening(self) -> int:
        """Tokens of the conversation's first prompt."""
        return len(self.prompt_ids) if self.parent is None else self.parent.said.opening


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """A turn of the model."""

    said: Said  # before it
    sample: Sample  # what the agent was given, token by token
    conversation: Conversation | None = None  # of a chat: after it
    messages: tuple[str, ...] = ()  # of a chat: with the model's
    text: str | None = None  # of a completion: prompt and answer

    @property
    def ids(self) -> np.ndarray:
        """int32: all ids up to its end."""
        return np.concatenate([self.said.prompt_ids, self.sample.completion_ids]).astype(np.int32)

    @property
    def chain(self) -> "tuple[Turn, ...]":
        """The conversation up to it."""
        before = () if self.said.parent is None else self.said.parent.chain
        return (*before, self)


def longest(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The conversation in which the model chose the most tokens; the earliest of equals. `turns` in order of their ends, at least one."""
    return max((turn.chain for turn in turns), key=lambda chain: sum(len(turn.sample.completion_ids) for turn in chain))


def conversations(turns: Sequence[Turn]) -> int:
    """How many there were: turns that none goes on from."""
    parents = {id(turn.said.parent) for turn in turns}
    return sum(id(turn) not in parents for turn in turns)


def whole(chain: Sequence[Turn], key: tuple[str, int]) -> tuple[np.ndarray, Sample, np.ndarray]:
    """Prompt ids, all turns in one sample, and its loss mask. Between turns: log-prob 0, and the version of the token before."""
    first, last = chain[0], chain[-1]
    ids, logprobs, versions, mask = [first.sample.completion_ids], [first.sample.logprobs], [first.sample.versions], [True]
    counts = [len(first.sample.completion_ids)]
    for before, turn in pairwise(chain):
        between = turn.said.prompt_ids[len(before.ids) :]
        for chosen, part, odds, drawn in (
            (False, between, np.zeros(len(between), np.float32), np.full(len(between), before.sample.versions[-1], np.int32)),
            (True, turn.sample.completion_ids, turn.sample.logprobs, turn.sample.versions),
        ):
            ids.append(part)
            logprobs.append(odds)
            versions.append(drawn)
            mask.append(chosen)
            counts.append(len(part))
    sample = replace(
        last.sample,
        key=key,
        completion_ids=np.concatenate(ids).astype(np.int32),
        logprobs=np.concatenate(logprobs).astype(np.float32),
        versions=np.concatenate(versions).astype(np.int32),
        raw_logprobs=None,
        started_s=first.sample.started_s,
    )
    return first.said.prompt_ids, sample, np.repeat(mask, counts)
