"""The self-test of whoever judges, at its start: known right and wrong answers. Called by `runtime.learning` and graders. No jax here."""

from slipstream.core.errors import RunFailed
from slipstream.envs.rows import Rows
from slipstream.envs.task import SelfTested, Task
from slipstream.telemetry.events import Events


def check_grader(task: Task, events: Events, role: str = "grader") -> None:
    """The canaries of a task that has some; an event `canaries` of `role`. Raises RunFailed where one is misjudged."""
    if isinstance(task, Rows):
        failed, name = task.grader.failed_canaries(), task.grader.name
    elif isinstance(task, SelfTested):
        failed, name = task.canaries().failed(), f"grader of {task.name}"
    else:
        return
    events.emit(role, "canaries", grader=name, failed=failed)
    if failed:
        raise RunFailed(f"the {name} misjudges what it must know, so its rewards cannot be trained on; {'; '.join(failed)}")
