"""The other side of a run's episodes: a host of graders and environments, or of agents. The one place that knows both."""

from collections.abc import Callable

from slipstream.core.clock import Clock
from slipstream.envs.agent import AgentTask
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.task import Task
from slipstream.runtime.agents.host import AgentHost
from slipstream.telemetry.events import Events, NullEvents


def open_environments(
    task: Task, *, clock: Clock, on_answer: Callable[[], None] = lambda: None, events: Events = NullEvents()
) -> EnvironmentHost | AgentHost:
    """For one sampler; its owner closes it. Raises ConfigError for deadlines that contradict each other."""
    if isinstance(task, AgentTask):
        return AgentHost(task, clock=clock, on_news=on_answer, events=events)
    return EnvironmentHost(task, clock=clock, on_answer=on_answer, events=events)
