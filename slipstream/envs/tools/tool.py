"""What a tool is: a name, a description for the chat template, and a function from arguments to text."""

from collections.abc import Mapping
from typing import Any, Protocol

from slipstream.text.call_json import Json


class ToolError(ValueError):
    """What the model did wrong with a tool, in words for the model. It is answered with them; the episode goes on."""


class ToolFailed(RuntimeError):
    """The tool itself is broken: an infrastructure failure of the episode, never an answer to the model."""


class Tool(Protocol):
    """Called from many threads at once."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """The function as chat templates take it: {"type": "function", "function": {name, description, parameters}}."""
        ...

    def call(self, arguments: Mapping[str, Json]) -> str:
        """Raises ToolError for arguments that it does not take, ToolFailed where it cannot work."""
        ...

    def close(self) -> None: ...


def function_schema(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """The schema of a function whose parameters are texts, all required: name = description."""
    properties = {key: {"type": "string", "description": words} for key, words in parameters.items()}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": shape}}


def text_argument(arguments: Mapping[str, Json], name: str) -> str:
    """The one argument, a text; a number counts as one. Raises ToolError for others, or more of them."""
    if unknown := sorted(set(arguments) - {name}):
        raise ToolError(f"no such argument: {', '.join(unknown)}; it takes {name}")
    value = arguments.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"the argument {name} has to be a text that is not empty")
    return value
