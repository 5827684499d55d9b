"""What an entry of the catalogue is: names of fields, a prompt form, a grader, and where the rows come from. Plain data.

Worked example: the entry `gsm8k` reads {"question": "Natalia sold ...", "answer": "72"} as a `Meaning` whose question is asked with
the instruction to end in `#### number`, and whose answer the grader `final_number` wants to see there.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.envs.datasets import ID_FIELDS, Dataset, Fields, Row, SkippedLine

_SLOT = re.compile(r"\{([a-z_]+)\}")
_HALF = re.compile("[\ud800-\udfff]")


class RowProblem(ValueError):
    """Why a row cannot be used, for people: "no field 'answer'"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptForm:
    """How a row is asked. Its hash goes with every score, since scores under two forms do not compare."""

    version: int = 1  # raised with any change of the code that fills the slots
    system: str = ""  # "" for none
    template: str = "{question}\n\n{instruction}"  # of the user's turn; slots are those of `Meaning.slots`, question and instruction
    instruction: str = ""
    shots: tuple[tuple[str, str], ...] = ()  # worked examples before the question: user's and assistant's turns

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits that change with any text that is said around a question."""
        told = [self.version, self.system, self.template, self.instruction, self.shots]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    def user_turn(self, meaning: "Meaning") -> str:
        """The text of the question's own turn."""
        slots = {"question": meaning.question, "instruction": self.instruction, **meaning.slots}
        return _SLOT.sub(lambda slot: slots[slot[1]], self.template).strip()

    def messages(self, meaning: "Meaning") -> list[dict[str, str]]:
        """The whole conversation up to the answer."""
        turns = [("system", self.system)] if self.system else []
        for asked, answered in self.shots:
            turns += [("user", asked), ("assistant", answered)]
        return [{"role": role, "content": content} for role, content in (*turns, ("user", self.user_turn(meaning)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a row asks and how an answer to it is judged."""

    question: str  # what tells it from other rows: leaks and duplicates are found by it
    answer: str = ""  # the reference answer, for people and simple graders
    slots: Mapping[str, str] = field(default_factory=dict)  # further texts for the template
    judged: Mapping[str, Any] = field(default_factory=dict)  # the verifier's row, but for the response
    worked: str = ""  # a model answer in the asked form, "" where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named task. The first field of several spellings that a row has counts."""

    name: str
    about: str  # one line for people
    source: str  # where the rows come from
    licence: str
    splits: str  # what to train on and what to keep apart
    question: tuple[str, ...]
    answer: tuple[str, ...] = ()
    needs_answer: bool = True
    ids: tuple[str, ...] = ID_FIELDS
    read: Callable[["Entry", Fields], Meaning]  # raises RowProblem
    form: PromptForm
    grader: str  # a name of `config.schema.RowsTask.grader`


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row and what it means."""

    row: Row
    meaning: Meaning

    @property
    def id(self) -> str:
        return self.row.id


def read_items(
    entry: Entry, data: Dataset, problem: Callable[[Meaning], str | None] = lambda _: None
) -> tuple[list[Item], list[SkippedLine]]:
    """The rows that can be used, and all others with the reason in the file's order. `problem` says what a grader has against one."""
    items: list[Item] = []
    skipped = list(data.skipped)
    for row in data.rows:
        try:
            meaning = entry.read(entry, row.fields)
            if reason := problem(meaning):
                raise RowProblem(reason)
        except RowProblem as why:
            skipped.append(SkippedLine(line=row.line, id=row.id, reason=str(why)))
        else:
            items.append(Item(row=row, meaning=meaning))
    return items, sorted(skipped, key=lambda skip: skip.line)


def with_fields(entry: Entry, *, question: str = "", answer: str = "", id: str = "") -> Entry:
    """The entry with a field of the user's choice where one is given."""
    return replace(
        entry,
        question=(question,) if question else entry.question,
        answer=(answer,) if answer else entry.answer,
        ids=(id,) if id else entry.ids,
    )


def text_of(fields: Fields, names: Sequence[str]) -> str:
    """The text, or the number as written, under the first of the names. Raises RowProblem where there is none, or an empty one."""
    name = _present(fields, names)
    value = fields[name]
    text = getattr(value, "text", None) or (str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None)
    if text is None or (isinstance(value, float) and value != value):
        raise RowProblem(f"field {name!r} is not text or a number")
    if not text.strip():
        raise RowProblem(f"empty {name}")
    if _HALF.search(text):
        raise RowProblem(f"field {name!r} holds half of a surrogate pair, which is no text")
    return text.strip()


def optional_text(fields: Fields, names: Sequence[str]) -> str:
    """The text under the first of the names as it stands, "" where there is none. Raises RowProblem when it is no text."""
    value = next((fields[name] for name in names if fields.get(name) is not None), "")
    if not isinstance(value, str):
        raise RowProblem(f"field {next(name for name in names if fields.get(name) is not None)!r} is not text")
    return value


def texts_of(fields: Fields, names: Sequence[str]) -> list[str]:
    """A list of texts that is not empty."""
    name = _present(fields, names)
    value = fields[name]
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text.strip() for text in value):
        raise RowProblem(f"field {name!r} is not a list of texts")
    return value


def _present(fields: Fields, names: Sequence[str]) -> str:
    for name in names:
        if name in fields:
            return name
    first, *others = [repr(name) for name in names]
    raise RowProblem(f"no field {first}{f' (or {chr(44).join(others)})' if others else ''}".replace(",", ", "))
