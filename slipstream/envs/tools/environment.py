"""An environment with tools, for models that write calls in their own format: calls are made, and a turn without any is the answer.

A call that cannot be read, names no tool or has wrong arguments is answered with an error in words, and counted. A tool that is
broken itself (`ToolFailed`) fails the episode. Made by `envs.tools.rows` for each sample.
"""

from collections.abc import Callable, Mapping, Sequence

from slipstream.core.errors import near_names
from slipstream.core.records import ModelTurn, Outcome, Prompt
from slipstream.envs.environment import Observation
from slipstream.envs.tools.tool import Tool, ToolError
from slipstream.text.tokenizer import Tokenizer
from slipstream.text.tool_calls import MalformedCall, ToolCall, ToolFormat, parse_turn

MOST_CALLS = 8  # of one turn that are made


class ToolEnvironment:
    """See `envs.environment.Environment`. `grade` judges the text of the turn that has no call."""

    def __init__(
        self,
        tools: Sequence[Tool],
        format: ToolFormat,
        tokenizer: Tokenizer,
        grade: Callable[[Prompt, str], Outcome],
        *,
        thinking_open: bool = False,
    ) -> None:
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._format, self._tokenizer, self._grade, self._thinking_open = format, tokenizer, grade, thinking_open
        self._prompt: Prompt | None = None

    def start(self, prompt: Prompt) -> None:
        self._prompt = prompt

    def step(self, turn: ModelTurn) -> Observation | Outcome:
        """Raises ToolFailed where a tool is broken, and what judging raises."""
        assert self._prompt is not None  # `start` comes first
        calls = parse_turn(self._whole_text(turn), self._format, thinking_open=self._thinking_open).calls
        if not calls:
            return self._grade(self._prompt, turn.text)
        answers = [self._answer(place, call) for place, call in enumerate(calls)]
        names = [call.name if isinstance(call, ToolCall) else "unreadable" for call in calls]
        return Observation(
            messages=tuple(
                {"role": "tool", "tool_call_id": f"call{place:05d}", "name": name, "content": words}
                for place, (name, (words, _)) in enumerate(zip(names, answers, strict=True))
            ),
            # one call stands for all: some templates refuse several, and what was called is in the model's own tokens
            answers={"tool_calls": [{"id": "call00000", "type": "function", "function": {"name": names[0]}}]},
            calls=len(calls),
            failed_calls=sum(failed for _, failed in answers),
        )

    def close(self) -> None:
        """Tools are shared by all episodes."""

    def _answer(self, place: int, call: ToolCall | MalformedCall) -> tuple[str, bool]:
        """What the call came to, in words, and whether it failed."""
        try:
            if place >= MOST_CALLS:
                raise ToolError(f"only {MOST_CALLS} calls are made in one turn")
            if isinstance(call, MalformedCall):
                raise ToolError(f"the call could not be read: {call.cause}")
            if call.name not in self._tools:
                raise ToolError(f"there is no tool {call.name!r}; {near_names(call.name, self._tools)}")
            return self._tools[call.name].call(call.arguments), False
        except ToolError as error:
            return f"Error: {error}", True

    def _whole_text(self, turn: ModelTurn) -> str:
        """With special tokens, which may mark calls, but for the stop token at the end."""
        ids = turn.token_ids.tolist()
        if ids and ids[-1] in self._tokenizer.stop_ids:
            ids.pop()
        return self._tokenizer.backend.decode(ids, skip_special_tokens=False)
