"""From a recipe name or a TOML file and `--set path=value` overrides to a checked `RunConfig`, and back to TOML.

All problems are reported at once: unknown fields (with the near ones), wrong types, and contradictions (`check.py`).
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from slipstream.config.check import contradictions
from slipstream.config.schema import RunConfig, Task
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
    """The configuration saved in a run directory. Raises UsageError when it is no TOML, ConfigError with every problem otherwise."""
    try:
        tree = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the saved configuration is not valid TOML: {error}") from error
    return _validated(tree, [])


def load_task(tree: Tree, overrides: Sequence[str] = ()) -> Task:
    """The settings of a task alone, with overrides (`task.x=value`) applied. Raises ConfigError with every problem."""
    whole: Tree = {"task": dict(tree)}
    problems = [problem for text in overrides if (problem := _task_override(whole, text))]
    return _well_formed(whole, problems).task


def dump_config(config: RunConfig) -> str:
    """The whole effective configuration as TOML; `parse_config` gives an equal one back."""
    return tomli_w.dumps(config.model_dump(mode="json"))


def _recipe_tree(recipe: str) -> Tree:
    path = Path(recipe)
    if recipe in recipe_names():
        text = (resources.files("slipstream.config") / "recipes" / f"{recipe}.toml").read_text()
    elif path.suffix == ".toml" or os.path.exists(recipe):  # unlike Path.exists it takes any text
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe file {recipe!r} cannot be read: {error}") from error
    else:
        raise UsageError(f"unknown recipe {recipe!r} ({near_names(recipe, recipe_names())}); a path to a TOML file works too")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {recipe!r} is not valid TOML: {error}") from error
    if (run := _table(tree.setdefault("run", {}))) is not None:
        run.setdefault("recipe", path.stem)
    return tree


def _apply_override(tree: Tree, text: str) -> Problem | None:
    """Put one `a.b=value` into the tree, in place; the value is TOML, or else plain text."""
    path, separator, raw = text.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        return Problem(field=f"--set {text}", value="", fix="write it as section.field=value")
    node = tree
    for key in keys[:-1]:
        child = _table(node.setdefault(key, {}))
        if child is None:
            return Problem(field=path, value=repr(raw), fix=f"{key} is a value, not a section")
        node = child
    node[keys[-1]] = _toml_value(raw.strip())
    return None


def _task_override(tree: Tree, text: str) -> Problem | None:
    path, _, raw = text.partition("=")
    if not path.strip().startswith("task."):
        return Problem(field=path, value=repr(raw), fix="only settings of the task can be given here: task.FIELD=VALUE")
    return _apply_override(tree, text)


def _table(value: Any) -> Tree | None:
    """The value if it is a TOML table."""
    return cast(Tree, value) if isinstance(value, dict) else None


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _validated(tree: Tree, problems: list[Problem]) -> RunConfig:
    return _well_formed(tree, problems, contradictions)


def _well_formed(tree: Tree, problems: list[Problem], judge: Callable[[RunConfig], list[Problem]] = lambda _: []) -> RunConfig:
    """The tree's settings. Raises ConfigError with `problems`, what is ill-formed, and, where nothing is, what `judge` finds."""
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = problems + [_problem(details) for details in error.errors()]
        raise ConfigError(problems) from None
    problems = problems + judge(config)
    if problems:
        raise ConfigError(problems)
    return config


def _problem(details: ErrorDetails) -> Problem:
    """What pydantic found, in the words and with the path that a person uses."""
    place = _place(details["loc"])
    field, given, kind = place.path, repr(details["input"]), details["type"]
    if kind == "extra_forbidden":
        fix = f"no such field; {near_names(str(details['loc'][-1]), _names(place.parents))}"
    elif kind == "missing":
        given = "(absent)"
        fix = "it has to be given" if place.within else f"this field is required; give it with --set {field}=..."
    elif kind == "union_tag_not_found":
        field, given = f"{field}.kind", "(absent)"
        fix = f"this field is required beside the others; give it with --set {field}=..., known: {', '.join(_tags(place.sections))}"
    elif kind == "union_tag_invalid":
        tag = str(details.get("ctx", {})["tag"])
        field, given, fix = f"{field}.kind", repr(tag), near_names(tag, _tags(place.sections))
    elif kind in ("model_type", "model_attributes_type"):
        fix = f"this is a section; set its fields one by one: {', '.join(sorted(_names(place.sections)))}"
    else:
        fix = details["msg"]
    return Problem(field=field, value=given, fix=place.within + fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where in the tree a problem is."""

    path: str  # as given to --set
    within: str  # the place inside the field's value, for a list; "" otherwise
    sections: Sequence[type[BaseModel]]  # section classes that may stand there
    parents: Sequence[type[BaseModel]]  # section classes that may stand one level up


def _place(location: Sequence[str | int]) -> _Place:
    """Walks the schema down a location of pydantic, which also names the chosen member of each union; a person does not."""
    path: list[str] = []
    within: list[str] = []
    parents: list[type[BaseModel]] = []
    sections: list[type[BaseModel]] = [RunConfig]
    for part in location:
        if isinstance(part, int):
            within.append(f"entry {part}")
        elif part in _tags(sections):
            sections = [section for section in sections if section.model_fields["kind"].default == part]
        else:
            (within or path).append(part)
            parents, sections = sections, [child for section in sections for child in _children(section, part)]
    return _Place(path=".".join(path), within=f"{', '.join(within)}: " if within else "", sections=sections, parents=parents)


def _tags(sections: Sequence[type[BaseModel]]) -> list[str]:
    """What `kind` may be where there is a choice between sections; [] where there is none."""
    return [section.model_fields["kind"].default for section in sections] if len(sections) > 1 else []


def _names(sections: Iterable[type[BaseModel]]) -> set[str]:
    return {name for section in sections for name in section.model_fields}


def _children(section: type[BaseModel], part: str) -> list[type[BaseModel]]:
    """Section classes found at field `part`; a union offers all its members."""
    field = section.model_fields.get(part)
    return _sections_in(field.annotation) if field else []


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    return [section for argument in arguments for section in _sections_in(argument)]
