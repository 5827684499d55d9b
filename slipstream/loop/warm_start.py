"""Supervised steps before reinforcement learning: demonstrations, in stages, through the same learner."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from slipstream.config.schema import WarmStartSection
from slipstream.core.records import Demonstration, TrainingSequence
from slipstream.loop.sequences import from_demonstration


class Demonstrations(Protocol):
    """A task that can show how it is done."""

    def demonstration(self, index: int, worked_share: float) -> Demonstration: ...


class SupervisedLearner(Protocol):
    """A learner that also takes supervised steps."""

    def warm_step(self, sequences: Sequence[TrainingSequence]) -> float: ...


def warm_start(learner: SupervisedLearner, task: Demonstrations, config: WarmStartSection) -> Iterator[tuple[int, float]]:
    """Runs the stages; yields (steps done, loss in nats a token) after each step. Demonstration i is used once, in order."""
    done = 0
    for stage in config.stages:
        for _ in range(stage.steps):
            first = done * config.samples_per_step
            shown = [task.demonstration(first + index, stage.worked_share) for index in range(config.samples_per_step)]
            loss = learner.warm_step([from_demonstration(demonstration) for demonstration in shown])
            done += 1
            yield done, loss
