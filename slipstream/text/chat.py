"""Chat templates: messages to the text that a model was trained on. Rendered in a sandbox, with the switches of Hugging Face.

The template comes with the model and is a program of strangers: it can neither reach the machine nor change its input.
The date it may ask for is given, never the clock's, so that a run's prompts are the same on any day.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError

from slipstream.core.errors import UsageError
from slipstream.text.sandbox import MAX_CHARACTERS, bounded_work, environment

Message = Mapping[str, Any]  # at least "role" and "content"; plain data all through

DEFAULT_DATE = datetime(2025, 1, 1)  # what `strftime_now` tells unless a caller says otherwise
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What a template of strangers can raise while it is compiled (SyntaxError: nested too deep for Python) or runs.
_ERRORS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError, SyntaxError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    template: Template
    source: str  # the text it was compiled from
    tokens: Mapping[str, str] = field(default_factory=dict)  # e.g. {"bos_token": "<|im_start|>"}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation; `add_generation_prompt` opens the assistant's turn.

        `variables` reach the template by name (e.g. enable_thinking). A message's keys without a value (None) are left out, as
        templates ask whether a key is there. Raises UsageError with the template's own message when it refuses the messages,
        fails, or exceeds the bounds of `text.sandbox`; and when a value is no plain data (text, number, list, mapping).
        """
        told = [{key: value for key, value in message.items() if value is not None} for message in messages]
        given = {**variables, "messages": told, "tools": tools, "add_generation_prompt": add_generation_prompt}
        values = {**self.tokens, **{name: _plain(value, name) for name, value in given.items()}}
        try:
            with bounded_work():
                return _joined(self.template.generate(values))
        except _ERRORS as error:
            raise UsageError(f"the chat template refused the messages: {error or type(error).__name__}") from error


def compile_template(source: str, tokens: Mapping[str, str] | None = None, *, date: datetime = DEFAULT_DATE) -> ChatTemplate:
    """The template of a source text. Raises UsageError for a syntax error."""
    try:
        with bounded_work():
            template = environment(date).from_string(source)
    except _ERRORS as error:
        raise UsageError(f"the chat template is not valid: {error or type(error).__name__}") from error
    return ChatTemplate(template=template, source=source, tokens=dict(tokens or {}))


def _joined(pieces: Iterator[str]) -> str:
    text: list[str] = []
    characters = 0
    for piece in pieces:
        characters += len(piece)
        if characters > MAX_CHARACTERS:
            raise ValueError(f"it writes more than {MAX_CHARACTERS} characters")
        text.append(piece)
    return "".join(text)


def _plain(value: Any, path: str) -> Any:
    """A copy of `value` in Python's own types: an object's methods (of an array, a path) would be the template's to call."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{path} holds half of a surrogate pair, which is no text; replace or remove it") from error
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_plain(key, path): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise UsageError(f"{path} is a {type(value).__name__}; a chat template takes only texts, numbers, lists and mappings")


def read_chat_template(directory: Path, *, date: datetime = DEFAULT_DATE) -> ChatTemplate:
    """The template of a model directory: chat_template.jinja, else `chat_template` of tokenizer_config.json.

    Raises UsageError when the directory has neither, or several of which none is called "default".
    """
    config = _tokenizer_config(directory / "tokenizer_config.json")
    file = directory / "chat_template.jinja"
    source = _read_text(file) if file.exists() else _default(config.get("chat_template"), directory)
    return compile_template(source, _special_tokens(config), date=date)


def _default(entry: Any, directory: Path) -> str:
    """The template's text of a config entry: a text, or a list of named texts."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        default = named.get("default")
        if isinstance(default, str):
            return default
        raise UsageError(f'{directory}: none of the chat templates {", ".join(map(str, named))} is called "default"')
    raise UsageError(f"model directory {directory} has no chat template; put one into {directory / 'chat_template.jinja'}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"chat template {path} cannot be read: {error}") from error


def _tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds a {type(tree).__name__}, not a JSON object")
    return tree


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; each is a text, or an object with its text under "content"."""
    found = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
