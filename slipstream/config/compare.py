"""What differs between two configurations, field by field."""

from collections.abc import Mapping
from typing import Any, cast

from slipstream.config.schema import RunConfig
from slipstream.core.errors import Problem


def changes(begun: RunConfig, asked: RunConfig) -> list[Problem]:
    """A problem for each field of `asked` that is not what the run began with."""
    old, new = _leaves(begun.model_dump(mode="json"), ""), _leaves(asked.model_dump(mode="json"), "")
    return [
        Problem(
            field=field,
            value=repr(new.get(field)),
            fix=f"the run began with {old.get(field)!r} and keeps it; leave it out, or start a new run in another --run-dir",
        )
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field)
    ]


def _leaves(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _leaves(cast("Mapping[str, Any]", value), f"{path}{key}.")
        else:
            found[path + key] = value
    return found
