"""The JSON of a tool call, read so strictly that no two readers could take it differently. Called by `text.tool_calls`."""

import json
import re
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


_TO_END = re.compile(r"\s*\Z")


class Unreadable(ValueError):
    """Why a call cannot be made."""


def read_json(text: str, start: int) -> tuple[Json, int]:
    """The JSON value at `start`, and where it ends. Raises Unreadable for what is no JSON or what two readers could take differently."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        ended = _TO_END.match(text, error.pos) or error.msg.startswith("Unterminated")
        raise Unreadable(f"its JSON {'has no end' if ended else 'is broken'}: {error.msg} (character {error.pos - start})") from error
    except UnicodeEncodeError as error:
        raise Unreadable("its JSON holds half of a surrogate pair") from error
    except RecursionError as error:
        raise Unreadable("its JSON is nested too deep") from error
    except Unreadable:
        raise
    except ValueError as error:  # beyond the range of numbers
        raise Unreadable(f"its JSON holds a number that cannot be read: {error}") from error
    return value, end


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"the key {json.dumps(key)} appears twice")
        found[key] = value
    return found


def _no_number(name: str) -> Json:
    raise Unreadable(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


def read_call(value: Json, key: str) -> tuple[str, dict[str, Json]]:
    """Name and arguments of a call's object; other keys are let be."""
    if not isinstance(value, dict):
        raise Unreadable(f"its JSON is no object but {_kind(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Unreadable('it has no "name"' if "name" not in value else f'its "name" is {json.dumps(name)}')
    if key not in value:
        raise Unreadable(f'it has no "{key}"')
    return name, read_arguments(value[key])


def read_arguments(value: Json) -> dict[str, Json]:
    """Arguments: an object, or a text that holds one."""
    if isinstance(value, str):
        value, end = read_json(text := value.strip(), 0)
        if end < len(text):
            raise Unreadable("text follows the JSON of its arguments")
    if not isinstance(value, dict):
        raise Unreadable(f"its arguments are no object but {_kind(value)}")
    return value


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "true or false"
    return {str: "a text", list: "a list", int: "a number", float: "a number"}.get(type(value), "null")
