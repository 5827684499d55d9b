"""A JSON object in a file of a model directory. Errors name the file; nothing here knows what the object means."""

import json
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UsageError when the file is absent, unreadable or holds something else."""
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"model directory {path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds a {type(tree).__name__}, not a JSON object")
    return tree
