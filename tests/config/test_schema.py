"""Each setting is documented, is read by some room, and stands where the documentation of its section says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import slipstream
from slipstream.config.schema import RunConfig

ROOT = Path(slipstream.__file__).parent
SOURCES = [path for path in ROOT.rglob("*.py") if ROOT / "config" not in path.parents and "slipstream.config.schema" in path.read_text()]


def sections(annotation: Any = RunConfig) -> Iterator[type[BaseModel]]:
    """All section classes of the tree, choices and list entries included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from sections(field.annotation)
    for argument in get_args(annotation):
        yield from sections(argument)


FIELDS = sorted(
    {(section, name) for section in sections() for name in section.model_fields}, key=lambda field: (field[0].__name__, field[1])
)
LEAVES = [(section, name) for section, name in FIELDS if name != "kind" and not list(sections(section.model_fields[name].annotation))]


def test_the_walk_finds_the_whole_tree() -> None:
    names = {section.__name__ for section in sections()}
    assert names >= {"RunConfig", "ScratchModel", "PretrainedModel", "ArithmeticTask", "SumsTask", "RowsTask", "WarmStage", "ModeSection"}
    assert len(LEAVES) > 45


@pytest.mark.parametrize(("section", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_every_field_says_what_it_is(section: type[BaseModel], name: str) -> None:
    described = section.model_fields[name].description
    assert name == "kind" or (described and described.endswith((".", ")", "`"))), f"{section.__name__}.{name} has no docstring"


@pytest.mark.parametrize("section", sorted(set(sections()), key=lambda section: section.__name__))
def test_every_section_says_what_it_is(section: type[BaseModel]) -> None:
    assert section.__doc__
    assert "Base of all sections" not in section.__doc__


@pytest.mark.parametrize(("section", "name"), LEAVES, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_every_field_is_read_by_some_room(section: type[BaseModel], name: str) -> None:
    """A setting that nothing reads would be a promise without effect. Read means `something.name` in a file that knows the schema."""
    read = re.compile(rf"\b\w+\.{name}\b")
    assert any(read.search(path.read_text()) for path in SOURCES), f"nothing reads {section.__name__}.{name}"


@pytest.mark.parametrize(("section", "name"), LEAVES, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_every_choice_has_more_than_one(section: type[BaseModel], name: str) -> None:
    """A field with one possible value is no setting."""
    choices = get_args(section.model_fields[name].annotation)
    assert len(choices) != 1 or not isinstance(choices[0], str)
