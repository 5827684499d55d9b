"""A search tool over a local file: BM25 over its passages (Robertson and Zaragoza 2009, eq. 3.15), deterministic to the last tie."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.envs.datasets import read_dataset
from slipstream.envs.tools.tool import function_schema, text_argument
from slipstream.text.call_json import Json

K1, B = 1.2, 0.75
FOUND = 3  # passages that one search gives
MOST_SHOWN = 600  # characters of each
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One thing that can be found."""

    title: str  # "" where there is none
    text: str


class Index:
    """Passages by their words."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = tuple(passages)
        counts = [Counter(words(f"{passage.title} {passage.text}")) for passage in passages]
        self._lengths = [count.total() for count in counts]
        self._mean = max(1.0, sum(self._lengths) / max(1, len(counts)))
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)  # word: (passage, how often)
        for place, count in enumerate(counts):
            for word, times in count.items():
                self._places[word].append((place, times))

    def search(self, query: str, most: int = FOUND) -> list[Passage]:
        """The passages that share words with the query, best first; of equal ones the earlier first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in sorted(set(words(query))):  # in one order: sums of floats depend on it
            found = self._places.get(word, [])
            rarity = log(1 + (len(self.passages) - len(found) + 0.5) / (len(found) + 0.5))
            for place, times in found:
                scores[place] += rarity * times * (K1 + 1) / (times + K1 * (1 - B + B * self._lengths[place] / self._mean))
        best = sorted(scores, key=lambda place: (-scores[place], place))[:most]
        return [self.passages[place] for place in best]


class SearchTool:
    """The tool `search`: {"query": "height of Everest"} -> the best passages."""

    name = "search"
    schema = function_schema("search", "Finds passages of a library by their words.", query="a few words, e.g. height of Everest")

    def __init__(self, index: Index) -> None:
        self._index = index

    def call(self, arguments: Mapping[str, Json]) -> str:
        found = self._index.search(text_argument(arguments, "query"))
        return "\n\n".join(f"[{number}] {_shown(passage)}" for number, passage in enumerate(found, start=1)) or "nothing found"

    def close(self) -> None:
        pass


def read_index(source: str, field: str = "task.search_file") -> Index:
    """The passages of a file of rows with `text` and, where there is one, `title`. Raises UsageError naming the file and the row."""
    data = read_dataset(source)
    if data.skipped:
        raise UsageError(f"{field} = {source!r}: {data.skipped[0]}")
    return Index([_passage(row.fields, row.line, source, field) for row in data.rows])


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return _WORD.findall(text.lower())


def _passage(fields: Mapping[str, Any], line: int, source: str, field: str) -> Passage:
    text, title = fields.get("text"), fields.get("title") or ""
    if not isinstance(text, str) or not text.strip() or not isinstance(title, str):
        raise UsageError(f"{field} = {source!r}: line {line} has no text in field 'text', or a title that is none")
    return Passage(title=title, text=text)


def _shown(passage: Passage) -> str:
    text = passage.text if len(passage.text) <= MOST_SHOWN else f"{passage.text[:MOST_SHOWN]}..."
    return f"{passage.title}: {text}" if passage.title else text
