"""BM25 by hand, ties by place, one clear error for a file that cannot be searched."""

from math import log
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.envs.tools.search import Index, Passage, SearchTool, read_index
from slipstream.envs.tools.tool import ToolError
from tests.envs.small_chat import write_lines

LIBRARY = (
    Passage(title="Everest", text="The mountain is 8849 metres high."),
    Passage(title="", text="A high tide comes twice a day."),
    Passage(title="Everest", text="First climbed in 1953."),
    Passage(title="", text="First climbed in 1953. Everest"),
)


def bm25(query: list[str], place: int) -> float:
    """The formula, a passage at a time."""
    texts = [f"{one.title} {one.text}".lower().replace(".", "").split() for one in LIBRARY]
    mean = sum(map(len, texts)) / len(texts)
    score = 0.0
    for word in query:
        found = sum(word in text for text in texts)
        times = texts[place].count(word)
        score += (
            log(1 + (len(texts) - found + 0.5) / (found + 0.5)) * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(texts[place]) / mean))
        )
    return score


@pytest.mark.parametrize("query", ["everest high", "Climbed 1953", "metres", "the a everest"])
def test_passages_come_by_their_score(query: str) -> None:
    scores = {place: bm25(query.lower().split(), place) for place in range(len(LIBRARY))}
    wanted = sorted((place for place in scores if scores[place]), key=lambda place: (-round(scores[place], 9), place))[:3]
    assert [LIBRARY.index(one) for one in Index(LIBRARY).search(query)] == wanted


def test_what_is_found_is_written_for_reading(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "library.jsonl", '{"title": "Everest", "text": "8849 metres"}', '{"text": "%s"}' % ("sea " * 400))
    tool = SearchTool(read_index(str(file)))
    assert tool.call({"query": "metres?"}) == "[1] Everest: 8849 metres"
    assert len(tool.call({"query": "sea"})) < 700
    assert tool.call({"query": "moon"}) == "nothing found"
    with pytest.raises(ToolError, match="query has to be a text"):
        tool.call({"query": ""})


@pytest.mark.parametrize(
    ("line", "why"), [('{"title": "x"}', "line 2 has no text in field 'text'"), ("{", "line 2: not JSON"), ('{"text": 3}', "line 2")]
)
def test_a_file_that_cannot_be_searched_is_refused(tmp_path: Path, line: str, why: str) -> None:
    file = write_lines(tmp_path / "library.jsonl", '{"text": "good"}', line)
    with pytest.raises(UsageError, match=f"task.search_file = .*{why}"):
        read_index(str(file))
