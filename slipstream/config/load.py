"""From a recipe name or a TOML file and `--set path=value` overrides to a checked `RunConfig`, and back to TOML.

All problems are reported at once: unknown fields (with the near ones), wrong types, and contradictions (`check.py`).
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from slipstream.config.check import contradictions
from slipstream.config.schema import RunConfig
from slipstream.core.errors import ConfigError, Problem, UsageError, near_names

Tree = dict[str, Any]


def recipe_names() -> list[str]:
    """Names of the built-in recipes."""
    folder = resources.files("slipstream.config") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_config(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration of a built-in recipe or a TOML file, with overrides applied.

    Raises UsageError for an unknown recipe or unreadable file, ConfigError with every problem of the tree otherwise.
    """
    tree = _recipe_tree(recipe)
    problems = [problem for text in overrides if (problem := _apply_override(tree, text))]
    return _validated(tree, problems)


def parse_config(toml_text: str) -> RunConfig:
    """The configuration saved in a run directory. Raises ConfigError."""
    return _validated(tomllib.loads(toml_text), [])


def dump_config(config: RunConfig) -> str:
    """The whole effective configuration as TOML; `parse_config` gives an equal one back."""
    return tomli_w.dumps(config.model_dump(mode="json"))


def _recipe_tree(recipe: str) -> Tree:
    path = Path(recipe)
    if recipe in recipe_names():
        text = (resources.files("slipstream.config") / "recipes" / f"{recipe}.toml").read_text()
    elif path.suffix == ".toml" or path.exists():
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe file {recipe!r} cannot be read: {error}") from error
    else:
        raise UsageError(f"unknown recipe {recipe!r}: {near_names(recipe, recipe_names())} A path to a TOML file works too.")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {recipe!r} is not valid TOML: {error}") from error
    tree.setdefault("run", {}).setdefault("recipe", path.stem)
    return tree


def _apply_override(tree: Tree, text: str) -> Problem | None:
    """Put one `a.b=value` into the tree, in place; the value is TOML, or else plain text."""
    path, separator, raw = text.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        return Problem(field=f"--set {text}", value="", fix="write it as section.field=value")
    node = tree
    for key in keys[:-1]:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            return Problem(field=path, value=repr(raw), fix=f"{key} is a value, not a section")
        node = child
    node[keys[-1]] = _toml_value(raw.strip())
    return None


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _validated(tree: Tree, problems: list[Problem]) -> RunConfig:
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = problems + [_problem(details) for details in error.errors()]
        raise ConfigError(problems) from None
    problems = problems + contradictions(config)
    if problems:
        raise ConfigError(problems)
    return config


def _problem(details: ErrorDetails) -> Problem:
    location = [str(part) for part in details["loc"]]
    field = ".".join(location)
    if details["type"] == "extra_forbidden":
        return Problem(
            field=field, value=repr(details["input"]), fix=f"no such field; {near_names(location[-1], _sibling_fields(location))}"
        )
    if details["type"] == "missing":
        return Problem(field=field, value="(absent)", fix="this field is required; give it with --set " + _settable(location) + "=...")
    return Problem(field=field, value=repr(details["input"]), fix=details["msg"])


def _settable(location: Sequence[str]) -> str:
    """The path to give to --set: pydantic names the chosen union member inside the location, a person does not."""
    return ".".join(part for part in location if part not in ("scratch", "pretrained", "arithmetic", "sums", "rows"))


def _sibling_fields(location: Sequence[str]) -> Iterable[str]:
    """Names that are allowed where the unknown one stood, found by walking the schema down the error's path."""
    models: list[type[BaseModel]] = [RunConfig]
    for part in location[:-1]:
        models = [child for model in models for child in _children(model, part)] or models
    return {name for model in models for name in model.model_fields}


def _children(model: type[BaseModel], part: str) -> list[type[BaseModel]]:
    """Section classes found at field `part` of `model`; a union offers all its members."""
    field = model.model_fields.get(part)
    return _models_in(field.annotation) if field else []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments: Mapping[int, Any] = dict(enumerate(getattr(annotation, "__args__", ())))
    return [model for argument in arguments.values() for model in _models_in(argument)]
