"""Rows that an agent of the user works on: a rows task (`envs.rows`) made by `envs.build`."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from slipstream.config.schema import RowsTask
from slipstream.core.records import Prompt
from slipstream.envs.agent import AgentLimits, Lead
from slipstream.envs.rows import Rows, RowsPlan, rows_task
from slipstream.envs.user_code import find_code, problem
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer

FIELD = "task.agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithAgent(Rows):
    """See `envs.agent.AgentTask`."""

    chat: ChatTemplate
    function: Callable[[str, str, dict[str, Any]], Any]
    agent_limits: AgentLimits
    longest_prompt: int  # tokens that the first request of a conversation may have

    @property
    def max_prompt_tokens(self) -> int:
        return self.longest_prompt

    def agent(self, prompt: Prompt) -> Lead:
        item = self.item(prompt)
        given = {
            "id": prompt.id,
            "messages": self.form.messages(item.meaning),
            "answer": item.meaning.answer,
            "row": dict(item.row.fields),
        }
        if inspect.iscoroutinefunction(self.function):

            async def lead(base_url: str, api_key: str) -> Any:
                return await self.function(base_url, api_key, deepcopy(given))

            return lead
        return lambda base_url, api_key: self.function(base_url, api_key, deepcopy(given))


def agent_rows(config: RowsTask, plan: RowsPlan, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> RowsWithAgent:
    """The plan's rows with the agent of the configuration."""
    function = find_agent(config.agent)
    rows = rows_task(plan, seed, tokenizer, chat)
    given = {field.name: getattr(rows, field.name) for field in fields(rows)}
    limits = AgentLimits(requests=config.max_turns, episode_s=config.episode_seconds, at_once=config.agents_at_once)
    return RowsWithAgent(**given, chat=chat, function=function, agent_limits=limits, longest_prompt=config.max_prompt_tokens)


def find_agent(address: str) -> Callable[..., Any]:
    """The function at an address. Raises UsageError where it cannot be had or takes other arguments."""
    found = find_code(address, FIELD, "function")
    try:
        inspect.signature(found).bind("", "", {})
    except TypeError as error:
        raise problem(address, FIELD, f"it is called as {address.rpartition(':')[2]}(base_url, api_key, prompt), and {error}") from error
    return found
