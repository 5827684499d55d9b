"""Rows answered over several turns by an environment of the user: a rows task (`envs.rows`) made by `envs.build`."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from slipstream.config.schema import RowsTask
from slipstream.core.records import Prompt
from slipstream.envs.environment import ChatTranscript, Environment, Limits
from slipstream.envs.rows import Rows, RowsPlan, rows_task
from slipstream.envs.user_code import find_code, problem
from slipstream.text.chat import ChatTemplate
from slipstream.text.conversation import open_conversation
from slipstream.text.tokenizer import Tokenizer

FIELD = "task.environment"
_METHODS = ("start", "step", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithEnvironment(Rows):
    """See `envs.environment.Interactive`."""

    chat: ChatTemplate
    make: Callable[[dict[str, Any]], Environment]
    limits: Limits

    def environment(self, prompt: Prompt) -> Environment:
        return self.make(deepcopy(dict(self.item(prompt).row.fields)))

    def transcript(self, prompt: Prompt) -> ChatTranscript:
        return ChatTranscript(open_conversation(self.chat, self.tokenizer, self.form.messages(self.item(prompt).meaning)))


def environment_rows(config: RowsTask, plan: RowsPlan, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> RowsWithEnvironment:
    """The plan's rows with the environment of the configuration."""
    found = find_environment(config.environment)
    rows = rows_task(plan, seed, tokenizer, chat)
    given = {field.name: getattr(rows, field.name) for field in fields(rows)}
    lifetime_s = float(getattr(found, "lifetime_s", "inf"))
    limits = Limits(turns=config.max_turns, step_s=config.step_seconds, episode_s=config.episode_seconds, lifetime_s=lifetime_s)
    return RowsWithEnvironment(**given, chat=chat, make=found, limits=limits)


def find_environment(address: str) -> Callable[[dict[str, Any]], Environment]:
    """The class at an address. Raises UsageError where it cannot be had or is no environment."""
    found = find_code(address, FIELD, "Class")
    if missing := [name for name in _METHODS if not callable(getattr(found, name, None))]:
        raise problem(address, FIELD, f"an environment has the methods {', '.join(_METHODS)}; this has no {' and no '.join(missing)}")
    return found
