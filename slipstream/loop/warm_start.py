"""Supervised steps before reinforcement learning: demonstrations, in stages, through the same learner."""

from collections.abc import Iterator

from slipstream.config.schema import WarmStartSection
from slipstream.core.errors import UsageError
from slipstream.core.ports import Demonstrator, SupervisedLearner
from slipstream.loop.sequences import from_demonstration


def warm_start(learner: SupervisedLearner, task: object, config: WarmStartSection) -> Iterator[tuple[int, float]]:
    """Runs the stages; yields (steps done, loss in nats a token) after each step. Demonstration i is used once, in order.

    Raises UsageError where there are stages and the task has no demonstrations.
    """
    if not config.stages:
        return
    if not isinstance(task, Demonstrator):
        raise UsageError(f"warm_start needs a task with demonstrations, and {type(task).__name__} has none")
    done = 0
    for stage in config.stages:
        for _ in range(stage.steps):
            first = done * config.samples_per_step
            shown = [task.demonstration(first + index, stage.worked_share) for index in range(config.samples_per_step)]
            loss = learner.warm_step([from_demonstration(demonstration) for demonstration in shown])
            done += 1
            yield done, loss
