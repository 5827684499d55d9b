"""Tool calls in an assistant's text: thinking, content, calls. Pure; a call that cannot be read is data, never an exception.

Only text that the model wrote belongs here: a tool's result may say anything. It must be the whole text of the turn: with
"</tool_call>" as a stop string, which is cut off, the last call would read as one without an end. Called by environments
with tools.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from slipstream.text.call_json import Json, Unreadable, read_arguments, read_call, read_json


class ToolFormat(Enum):
    """How a family of models writes a call."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen 2.5, Qwen 3
    LLAMA3 = "llama3"  # {"name": ..., "parameters": {...}}; {...} from the turn's start or <|python_tag|>; <function=NAME>{...}</function>


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as the model wrote it, e.g. name "add", arguments {"a": 1, "b": 2.0}. Numbers keep their type and size."""

    name: str
    arguments: Mapping[str, Json]
    raw: str  # the text it was read from, marks included


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """A call that cannot be made."""

    cause: str  # for people and for the model, e.g. 'the key "a" appears twice'
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """An assistant's text, taken apart."""

    thinking: str | None  # between <think> and </think>; None where there is none
    content: str  # the text outside thinking and calls
    calls: tuple[ToolCall | MalformedCall, ...]  # in the order written


Part: TypeAlias = str | ToolCall | MalformedCall
Meaning: TypeAlias = Callable[[re.Match[str], Json], tuple[str, dict[str, Json]]]  # name and arguments of a mark and its JSON

_SPACES = re.compile(r"[ \t\n\r]*")
_TAG = "<|python_tag|>"
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_CALL_LIKE = re.compile(r'\{\s*"(?:(?:name|parameters)"\s*:|type"\s*:\s*"function")')


def tool_format(template_source: str) -> ToolFormat | None:
    """The format that a chat template teaches, by the marks in its source; None where it teaches none of these."""
    if "<tool_call>" in template_source:
        return None if "<function=" in template_source else ToolFormat.HERMES  # with both marks: calls in XML
    if "<|python_tag|>" in template_source or ("<|start_header_id|>" in template_source and '"parameters"' in template_source):
        return ToolFormat.LLAMA3
    return None


def parse_turn(text: str, format: ToolFormat, *, thinking_open: bool = False) -> AssistantTurn:
    """Take an assistant's text apart. `thinking_open`: the generation prompt has already written <think>.

    What stands in thinking is no call, even where the thinking has no end. Without calls the content is the text as it is
    (after the thinking); else the pieces between the calls, stripped and joined by newlines.
    """
    thinking, text = _split_thinking(text, thinking_open)
    parts = list(_hermes(text) if format is ToolFormat.HERMES else _llama3(text))
    calls = tuple(part for part in parts if not isinstance(part, str))
    outside = [part for part in parts if isinstance(part, str)]
    content = "\n".join(piece for part in outside if (piece := part.strip())) if calls else "".join(outside)
    return AssistantTurn(thinking=thinking, content=content, calls=calls)


def _split_thinking(text: str, is_open: bool) -> tuple[str | None, str]:
    opened = text.lstrip()
    if opened.startswith("<think>"):
        text = opened.removeprefix("<think>")
    elif not is_open:
        return None, text
    thinking, _, rest = text.partition("</think>")
    return thinking.strip(), rest.lstrip()


def _hermes(text: str) -> Iterator[Part]:
    """Text and calls in turn."""
    return _tagged(text, re.compile("<tool_call>"), "</tool_call>", lambda _, value: read_call(value, "arguments"))


def _llama3(text: str) -> Iterator[Part]:
    tagged, function = text.find(_TAG), _FUNCTION.search(text)
    if _is_bare_call(text):
        yield from _listed(text, 0, 0)
    elif tagged >= 0 and not (function and function.start() < tagged):
        yield text[:tagged]
        yield from _listed(text, tagged, tagged + len(_TAG))
    else:
        yield from _tagged(text, _FUNCTION, "</function>", lambda match, value: (match[1], read_arguments(value)))


def _is_bare_call(text: str) -> bool:
    """Whether a turn that is JSON is meant as a call: it opens with a call's key, or is an object with a call's keys."""
    start = _skip(text, 0)
    if _CALL_LIKE.match(text, start):
        return True
    try:
        value, _ = read_json(text, start) if text.startswith("{", start) else (None, 0)
    except Unreadable:
        return False
    return isinstance(value, dict) and {"name", "parameters"} <= set(value)


def _tagged(text: str, opening: re.Pattern[str], closing: str, meaning: Meaning) -> Iterator[Part]:
    """Calls between an opening and a closing mark. The JSON itself says where it ends: its texts may hold either mark."""
    position = 0
    while match := opening.search(text, position):
        yield text[position : match.start()]
        end = match.end()
        try:
            value, end = read_json(text, _skip(text, end))
            if not text.startswith(closing, _skip(text, end)):
                raise Unreadable(f"after its JSON comes no {closing}")
            name, arguments = meaning(match, value)
            position = _past_call(text, end, opening, closing)
            yield ToolCall(name=name, arguments=arguments, raw=text[match.start() : position])
        except Unreadable as error:
            position = _past_call(text, end, opening, closing)
            yield MalformedCall(cause=str(error), raw=text[match.start() : position])
    yield text[position:]


def _past_call(text: str, end: int, opening: re.Pattern[str], closing: str) -> int:
    """After the closing mark that follows `end`; without one, the next opening mark or the text's end."""
    following = opening.search(text, end)
    limit = following.start() if following else len(text)
    closed = text.find(closing, end, limit)
    return limit if closed < 0 else closed + len(closing)


def _listed(text: str, call: int, position: int) -> Iterator[Part]:
    """Calls one after the other, separated by semicolons, the first from `call` on and its JSON from `position`; the rest is content."""
    while True:
        try:
            value, end = read_json(text, _skip(text, position))
        except Unreadable as error:
            yield MalformedCall(cause=str(error), raw=text[call:])
            return
        try:
            name, arguments = read_call(value, "parameters")
            yield ToolCall(name=name, arguments=arguments, raw=text[call:end])
        except Unreadable as error:
            yield MalformedCall(cause=str(error), raw=text[call:end])
        after = _skip(text, end)
        if text.startswith("{", after):
            yield MalformedCall(cause="between two calls comes no semicolon", raw=text[after:])
            return
        if not text.startswith(";", after):
            yield text[end:]
            return
        call = position = _skip(text, after + 1)
        if position == len(text):
            return


def _skip(text: str, position: int) -> int:
    """The first position from `position` on that is no space of JSON's."""
    spaces = _SPACES.match(text, position)
    assert spaces is not None  # none is a match too
    return spaces.end()
