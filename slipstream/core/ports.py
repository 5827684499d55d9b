"""Protocols of the roles. `loop` and `ledger` see nothing else of samplers, learners, graders and stores.

The same loop therefore runs embedded, over HTTP, on Ray and inside the simulator.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from slipstream.core.records import (
    AgentNews,
    Batch,
    Demonstration,
    EnvironmentTurn,
    EpisodeEnd,
    ModelTurn,
    Prompt,
    Receipt,
    Rollout,
    Sample,
    SampleRequest,
    Ticket,
    TrainingSequence,
    WeightVersion,
)


class Sampler(Protocol):
    """Generates. Continuous: requests go in at any time, finished samples come out of `step`."""

    id: str
    sampler_class: str

    @property
    def version(self) -> int:
        """Policy version loaded now; -1 before the first load."""
        ...

    def load(self, weights: WeightVersion) -> None:
        """Take new weights; running samples go on with them from their next token."""
        ...

    def waiting(self) -> int:
        """Requests accepted and not yet running."""
        ...

    def running(self) -> int:
        """Requests that hold a slot."""
        ...

    def free_slots(self) -> int:
        """Slots neither running nor spoken for by waiting requests; 0 when there are more requests than slots."""
        ...

    def submit(self, request: SampleRequest) -> None: ...

    def step(self) -> list[Sample]:
        """Advance all running samples by a few tokens; returns those that finished."""
        ...


@runtime_checkable
class Abortable(Protocol):
    """A sampler that can be told to stop one sample."""

    def abort(self, key: tuple[str, int]) -> Sample | None:
        """End it now; what it has drawn. Nothing more comes of it. None where there is no such sample."""
        ...


class Learner(Protocol):
    """Trains. Steps are numbered from 0; after step s the policy version is s + 1."""

    @property
    def version(self) -> int: ...

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """One policy update (one or more optimizer steps over minibatches); returns its metrics."""
        ...

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion) -> list[np.ndarray]:
        """Log-probs of each sequence's tokens [tokens] under given weights; entry 0 is 0."""
        ...

    def reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """As `score`, under the fixed reference policy; only where the objective has one."""
        ...

    def values(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """The present values [tokens] of the states in which each sequence's tokens are chosen; only where there is a value head."""
        ...

    def weights(self) -> WeightVersion:
        """The present version, safe to hand to samplers (never overwritten in place)."""
        ...

    def save(self, directory: Path) -> None:
        """Write parameters, optimizer state and counters under `directory` (no manifest: the caller's)."""
        ...


EpisodeKey = tuple[str, int]
"""Ticket id (or another name of the prompt) and sample index."""


class Environments(Protocol):
    """Answers model turns beside generation: with the verdict, or with what an environment says. Only `wait` and `close` block."""

    @property
    def interactive(self) -> bool:
        """False where the first turn of every episode is its last."""
        ...

    def answer(self, key: EpisodeKey, prompt: Prompt, turn: ModelTurn) -> None:
        """Begin to answer a turn; an episode begins with its first. Its next turn comes after this one's answer."""
        ...

    def answered(self) -> list[tuple[EpisodeKey, EnvironmentTurn | EpisodeEnd]]:
        """The answers that have come since the last call, in any order. Raises what a grader fell over."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there is an answer, or a failure to raise; False when there was none in the time."""
        ...

    def close(self) -> None:
        """End everything; what is unanswered never will be."""
        ...


@runtime_checkable
class Agents(Protocol):
    """Runs agents, which lead their episodes: they ask for turns of the model, and say at last how it went. Only two methods block."""

    @property
    def at_once(self) -> int:
        """So many agents run at a time; further ones wait."""
        ...

    def begin(self, prompt: Prompt, first: SampleRequest) -> None:
        """Start an agent on a prompt. `first` says how the model's turns are drawn and, by `max_new_tokens`, how long a conversation
        may become after its first prompt; its `key` names the episode."""
        ...

    def reply(self, sample: Sample) -> None:
        """A turn that was asked for, under the key of its request."""
        ...

    def drop(self, key: EpisodeKey) -> None:
        """End an episode's agent; nothing more is told of it."""
        ...

    def news(self) -> AgentNews:
        """What happened since the last call. Raises what ends a run."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there are news, or a failure to raise; False when there were none in the time."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class TextCodec(Protocol):
    """Token ids to text; all that the loop needs of a tokenizer."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can show how it is done."""

    def demonstration(self, index: int, worked_share: float) -> Demonstration:
        """The `index`-th demonstration; `worked_share` of them show their working."""
        ...


class Corpus(Protocol):
    """A static stream of supervised rows."""

    @property
    def name(self) -> str: ...

    def rows(self, step: int) -> list[Demonstration]:
        """Those of learner step `step` (0-based): a pure function of it, and of the run's seed."""
        ...


class SupervisedLearner(Protocol):
    """A learner that also takes supervised steps."""

    def warm_step(self, sequences: Sequence[TrainingSequence]) -> float:
        """One supervised optimizer step; returns its loss, nats a token."""
        ...


class PromptStream(Protocol):
    """The run's prompts in their one order: `prompt(i)` is a pure function of i (and of the run's seed)."""

    def prompt(self, index: int) -> Prompt: ...


class WeightStore(Protocol):
    """Published versions. Asking for one that has gone is an error, never something newer."""

    def publish(self, weights: WeightVersion) -> None: ...

    def newest(self) -> int:
        """The newest published version, -1 when there is none."""
        ...

    def has(self, version: int) -> bool: ...

    def get(self, version: int) -> WeightVersion: ...


class Ledger(Protocol):
    """Owns what must survive: tickets, samples, batches, staleness."""

    def wanted_version(self, newest: int) -> int | None:
        """The version to have loaded before the next claim; None when nothing can be claimed now."""
        ...

    def claim(self, worker: str, tickets: int, loaded_version: int) -> list[Ticket]:
        """Up to `tickets` tickets that admission allows now; an empty list means ask again later."""
        ...

    def submit(self, rollouts: Sequence[Rollout]) -> list[Receipt]:
        """Hand in finished, graded rollouts; says what became of each, in order. First write wins; the rest is counted.

        Raises RolloutRefused, and takes none of them, where one could not be of this run.
        """
        ...

    def batch(self, step: int) -> Batch | None:
        """The fixed batch of `step`, or None while it is not complete. Asked again it is the same, byte for byte."""
        ...

    def commit(self, step: int) -> None:
        """Step `step` has run: its samples are trained and version step + 1 exists."""
        ...
