"""The ledger's rules of a configuration, and the environments that they count by. Needs no jax; called where a run is put together."""

from functools import lru_cache

from slipstream.config.schema import RowsTask, RunConfig
from slipstream.core.errors import UsageError
from slipstream.envs.rows import Rows
from slipstream.envs.task import Task
from slipstream.ledger.rules import EnvironmentOf, one_environment
from slipstream.ledger.state import Policy as LedgerPolicy

REMEMBERED = 1 << 16  # environments of tickets: more than are drawn at once


def ledger_policy(config: RunConfig) -> LedgerPolicy:
    """The ledger's rules of a configuration."""
    return LedgerPolicy(
        prompts_per_step=config.batch.prompts_per_step,
        group_size=config.batch.group_size,
        eta=config.mode.eta,
        pinned=config.mode.kind != "inflight",
        steps=config.run.steps,
        refill=config.batch.refill,
        staleness=config.mode.staleness,
        caps=config.batch.caps,
    )


def environments(config: RunConfig, task: Task) -> EnvironmentOf:
    """The environment of each ticket. Raises UsageError for a cap of one that the run does not have."""
    caps = config.batch.caps
    if not caps:
        return one_environment
    field = config.task.environment_field if isinstance(config.task, RowsTask) else ""
    if field and isinstance(task, Rows):
        known = {str(item.row.fields.get(field, "")) for item in task.training_items.values()}
        found: EnvironmentOf = lru_cache(REMEMBERED)(lambda index: str(task.item(task.prompt(index)).row.fields.get(field, "")))
    else:
        known, found = {task.name}, lambda index: task.name
    if unknown := sorted(caps.keys() - known):
        names = ", ".join(map(repr, sorted(known)[:10]))
        where = f"in the field {field!r} of the training rows (task.environment_field)" if field else "which is the task's"
        raise UsageError(f"batch.caps.{unknown[0]} = {caps[unknown[0]]}: no environment has this name; there is {names}, {where}")
    return found
