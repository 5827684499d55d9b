"""Chat templates: messages to the text that a model was trained on. Rendered in a sandbox, with the switches of Hugging Face.

The template comes with the model and is a program of strangers: it can neither reach the machine nor change its input.
The date it may ask for is given, never the clock's, so that a run's prompts are the same on any day.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.core.errors import UsageError

Message = Mapping[str, Any]  # at least "role" and "content"

DEFAULT_DATE = datetime(2025, 1, 1)  # what `strftime_now` tells unless a caller says otherwise
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ERRORS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)  # of a running template


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    template: Template
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

        `variables` reach the template by name (e.g. enable_thinking). Raises UsageError with the template's own message when it
        refuses the messages or fails.
        """
        values = {**self.tokens, **variables, "messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return self.template.render(values)
        except _ERRORS as error:
            raise UsageError(f"the chat template refused the messages: {error}") from error


def compile_template(source: str, tokens: Mapping[str, str] | None = None, *, date: datetime = DEFAULT_DATE) -> ChatTemplate:
    """The template of a source text. Raises UsageError for a syntax error."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = date.strftime
    try:
        template = environment.from_string(source)
    except _ERRORS as error:
        raise UsageError(f"the chat template is not valid: {error}") from error
    return ChatTemplate(template=template, tokens=dict(tokens or {}))


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


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as models have seen it: no HTML escapes (jinja2's own filter writes < as \\u003c)."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for other trainers; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
