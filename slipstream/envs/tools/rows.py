"""Rows whose questions may be answered with the help of tools: a rows task (`envs.rows`) of several turns. Called by `envs.build`."""

import hashlib
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields

from slipstream.config.schema import WordsTask
from slipstream.core.errors import UsageError
from slipstream.core.records import Prompt
from slipstream.envs.environment import ChatTranscript, Limits
from slipstream.envs.rows import Rows, RowsPlan, rows_task
from slipstream.envs.tools.calculator import Calculator
from slipstream.envs.tools.environment import ToolEnvironment
from slipstream.envs.tools.search import SearchTool, read_index
from slipstream.envs.tools.tool import Tool
from slipstream.text.chat import ChatTemplate
from slipstream.text.conversation import open_conversation
from slipstream.text.tokenizer import Tokenizer
from slipstream.text.tool_calls import ToolFormat, tool_format


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class RowsWithTools(Rows):
    """See `envs.environment.Interactive`."""

    tools: tuple[Tool, ...]
    chat: ChatTemplate
    calls: ToolFormat
    limits: Limits

    @property
    def format_hash(self) -> str:
        told = [self.form.hash, [tool.schema for tool in self.tools], self.limits.turns]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    def environment(self, prompt: Prompt) -> ToolEnvironment:
        thinking_open = prompt.text.rstrip().endswith("<think>")
        return ToolEnvironment(self.tools, self.calls, self.tokenizer, self.grade, thinking_open=thinking_open)

    def transcript(self, prompt: Prompt) -> ChatTranscript:
        messages = self.form.messages(self.item(prompt).meaning)
        return ChatTranscript(open_conversation(self.chat, self.tokenizer, messages, tools=[tool.schema for tool in self.tools]))


def tool_rows(config: WordsTask, plan: RowsPlan, seed: int, tokenizer: Tokenizer, chat: ChatTemplate) -> RowsWithTools:
    """The plan's rows with the tools of the configuration, which end with the task.

    Raises UsageError where the chat template teaches no format of calls that is known, or the file to search cannot be used;
    RunFailed where the Python tool cannot be isolated.
    """
    calls = tool_format(chat.source)
    if calls is None:
        raise UsageError(
            f"task.tools = {list(config.tools)}: the model's chat template has no tool calls of a known format "
            f"({', '.join(one.value for one in ToolFormat)}); use a model that has, or remove them"
        )
    tools = open_tools(config)
    rows = rows_task(plan, seed, tokenizer, chat, tools=[tool.schema for tool in tools])
    given = {field.name: getattr(rows, field.name) for field in fields(rows)}
    limits = Limits(turns=config.max_turns, step_s=config.step_seconds, episode_s=config.episode_seconds)
    task = RowsWithTools(**given, tools=tools, chat=chat, calls=calls, limits=limits)
    weakref.finalize(task, _close, tools)  # also runs at the end of the interpreter
    return task


def open_tools(config: WordsTask) -> tuple[Tool, ...]:
    """The tools by their names, in the order of the configuration."""
    return tuple(_open(name, config) for name in config.tools)


def _open(name: str, config: WordsTask) -> Tool:
    if name == "calculator":
        return Calculator()
    if name == "search":
        return SearchTool(read_index(config.search_file))
    from slipstream.envs.tools.python import PythonTool  # lazily: the sandbox needs Linux

    return PythonTool()


def _close(tools: Sequence[Tool]) -> None:
    for tool in tools:
        tool.close()
