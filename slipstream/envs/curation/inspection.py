"""What is in a data file: rows, fields, lengths, kinds of answers, duplicates, some rows to read. For `slipstream data inspect`."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.envs.catalog.entry import Entry, Item, Meaning, read_items
from slipstream.envs.catalog.registry import ENTRIES
from slipstream.envs.curation.duplicates import find_duplicates
from slipstream.envs.datasets import MOST_TOLD, Dataset, SkippedLine
from slipstream.envs.grading import row_grader

_PERCENTILES = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}
_KINDS = (
    ("integer", re.compile(r"[-+]?[0-9]+(,[0-9]{3})*")),
    ("decimal", re.compile(r"[-+]?([0-9]+(,[0-9]{3})*)?\.[0-9]+")),
    ("fraction", re.compile(r"[-+]?([0-9]+/[0-9]+|\\[dt]?frac\s*(\{[0-9]+\}|[0-9])\s*(\{[0-9]+\}|[0-9]))")),
    ("latex", re.compile(r".*[\\^_{}$].*", re.DOTALL)),
    ("one word", re.compile(r"\S+")),
)


def read_as(entry: Entry, data: Dataset) -> tuple[list[Item], list[SkippedLine]]:
    """The rows that a run of this task could use, and the others."""
    return read_items(entry, data, row_grader(entry.grader).problem)


def guess_entry(data: Dataset) -> Entry:
    """The entry of the catalogue that makes sense of most of the rows; the first of equals."""
    return max(ENTRIES.values(), key=lambda entry: len(read_items(entry, data, _cheap_problem(entry))[0]))


def _cheap_problem(entry: Entry) -> Callable[[Meaning], str | None]:
    """What the entry's grader has against a row, where that needs no verifier."""
    return row_grader(entry.grader).problem if entry.grader not in ("math", "code") else lambda _: None


def inspect(data: Dataset, entry: Entry, sizes: Mapping[str, Callable[[str], int]], samples: int = 3) -> dict[str, Any]:
    """All figures as JSON values. `sizes` are the measures of length by their unit."""
    items, skipped = read_as(entry, data)
    questions = [item.meaning.question for item in items]
    copies = find_duplicates(questions)
    return {
        "file": data.name,
        "task": entry.name,
        "grader": entry.grader,
        "format_hash": entry.form.hash,
        "rows": len(data.rows) + len(data.skipped),
        "usable": len(items),
        "unusable": len(skipped),
        "reasons": dict(Counter(skip.reason for skip in skipped).most_common(MOST_TOLD)),
        "first_unusable": [str(skip) for skip in skipped[:MOST_TOLD]],
        "fields": _fields(data),
        "lengths": {unit: _percentiles([size(question) for question in questions]) for unit, size in sizes.items()},
        "answers": dict(Counter(answer_kind(item) for item in items).most_common()),
        "duplicates": sum(copy.similarity == 1.0 for copy in copies.values()),
        "near_duplicates": sum(copy.similarity < 1.0 for copy in copies.values()),
        "samples": [{"id": item.id, "question": item.meaning.question, "answer": item.meaning.answer} for item in items[:samples]],
    }


def answer_kind(item: Item) -> str:
    """In a word or two, what an answer is."""
    judged = item.meaning.judged
    if "style" in judged:
        return f"{judged['style']} tests"
    if "numbers" in judged:
        return "expression"
    answer = item.meaning.answer.strip()
    return next((kind for kind, form in _KINDS if form.fullmatch(answer)), "text")


def _fields(data: Dataset) -> dict[str, dict[str, int]]:
    """Of each field the types of its values, with counts."""
    found: dict[str, Counter[str]] = {}
    for row in data.rows:
        for name, value in row.fields.items():
            found.setdefault(name, Counter())[_type(value)] += 1
    return {name: dict(types.most_common()) for name, types in found.items()}


def _type(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", str: "text", dict: "object", list: "list"}
    return kinds.get(type(value), "number" if isinstance(value, int | float) else type(value).__name__)


def _percentiles(lengths: Sequence[int]) -> dict[str, int]:
    if not lengths:
        return {}
    return {name: int(np.percentile(lengths, share, method="nearest")) for name, share in _PERCENTILES.items()}
