"""Prompts as token ids: of chat messages by the template, of plain text, or given as ids. Pure. For `serve`, `agents`, `generate`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.text.chat import ChatTemplate, Message
from slipstream.text.tokenizer import Tokenizer

_TEMPLATE_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})  # what a rendering has anyway


def given_ids(ids: Sequence[int], tokens: int, name: str) -> np.ndarray:
    """Ids as they are, int32. Raises UsageError where there are none, or one is outside the vocabulary of `tokens`."""
    if not ids:
        raise UsageError(f"{name} is empty; give at least one token id")
    wrong = next((place for place, id in enumerate(ids) if not _is_id(id, tokens)), None)
    if wrong is not None:
        raise UsageError(f"{name}[{wrong}] = {ids[wrong]!r} is outside the vocabulary; token ids are 0 to {tokens - 1}")
    return np.array(ids, np.int32)


def text_ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Ids of a text that begins a sequence: what the tokenizer puts before every text (a BOS token) comes first, once.

    Nothing is put after it, and no chat template is applied. Raises UsageError for an empty text, or one that has no tokens.
    """
    plain = tokenizer.encode(text).tolist()
    if not plain:
        raise UsageError("the prompt is empty")
    whole = tokenizer.backend.encode(text, add_special_tokens=True).ids
    before = next((count for count in range(len(whole) - len(plain) + 1) if whole[count : count + len(plain)] == plain), 0)
    begun = whole[:before]
    return np.array(plain if plain[:before] == begun else begun + plain, np.int32)


def chat_text(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as text, with the model's turn opened. Raises UsageError for what the template cannot render.

    Messages may be as OpenAI's clients send them: content in parts of text, arguments of tool calls as JSON texts, and the
    role "developer", which is told to the template as "system". Tools that the template does not show are refused.
    """
    variables = variables or {}
    if wrong := sorted(_TEMPLATE_NAMES & set(variables)):
        raise UsageError(f"the chat template's {', '.join(wrong)} cannot be set by chat_template_kwargs")
    if not messages:
        raise UsageError("messages is empty; give at least one message")
    told = [plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    text = template.render(told, add_generation_prompt=True, tools=tools, **variables)
    if tools and text == template.render(told, add_generation_prompt=True, tools=None, **variables):
        raise UsageError("tools: the model's chat template does not show them to the model; leave them out")
    return text


def chat_ids(template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message]) -> np.ndarray:
    """`chat_text` as ids. Raises UsageError too where it has no tokens."""
    ids = tokenizer.encode(chat_text(template, messages))
    if not len(ids):
        raise UsageError("the chat template makes an empty prompt of the messages")
    return ids


def _is_id(value: object, tokens: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < tokens


def plain_message(message: Message, path: str) -> Message:
    """A message as templates are told it: content as one text, arguments of calls as objects. Raises UsageError naming `path`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f'{path} is no message: an object with "role" and "content" is needed')
    told = {**message, "role": "system" if message["role"] == "developer" else message["role"]}
    if isinstance(message.get("content"), list):
        told["content"] = "".join(_part(part, f"{path}.content[{index}]") for index, part in enumerate(message["content"]))
    elif not isinstance(message.get("content"), str | None):
        raise UsageError(f"{path}.content must be a text or a list of text parts")
    if message.get("content") is None and not message.get("tool_calls"):
        raise UsageError(f"{path}.content is missing")
    if message.get("tool_calls"):
        told["tool_calls"] = [_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(_list(message["tool_calls"], path))]
    return told


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{path}.tool_calls must be a list")
    return value


def _part(part: object, path: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise UsageError(f"{path} is of type {kind!r}; only text parts are supported")


def _call(call: object, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(f"{path} is no call of a function with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise UsageError(f"{path}.function.arguments is no JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}
