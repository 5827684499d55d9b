"""Rows of static corpora: the three forms, what is left out and told, and the order by step."""

import json
from pathlib import Path

import numpy as np
import pytest

from slipstream.config.schema import StreamSection
from slipstream.core.errors import UsageError
from slipstream.envs.corpora import StaticCorpus, read_corpus
from slipstream.text.chat import compile_template
from slipstream.text.tokenizer import character_tokenizer

TOKENIZER = character_tokenizer("abcUA:.")  # the stop token is 0
CHAT = compile_template(
    "{% for m in messages %}{{ 'U' if m.role == 'user' else 'A' }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)


def corpus(path: Path, rows: list[object], kind: str = "sft", samples: int = 2, longest: int = 12) -> StaticCorpus:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    section = StreamSection.model_validate({"name": "s", "file": str(path), "kind": kind, "samples_per_step": samples})
    return read_corpus(section, 5, TOKENIZER, CHAT, longest)


def ids(row) -> tuple[list[int], list[int]]:
    return row.prompt_ids.tolist(), row.completion_ids.tolist()


def test_rows_of_ids_and_of_messages(tmp_path: Path) -> None:
    """Of a conversation the last message is learned, with its stop token."""
    talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    found = corpus(tmp_path / "rows.jsonl", [{"prompt_ids": [1, 2], "completion_ids": [3, 0]}, {"messages": talk}])
    assert ids(found.demonstrations[0]) == ([1, 2], [3, 0])
    assert ids(found.demonstrations[1]) == (TOKENIZER.encode("U:ab<end>A:").tolist(), [3, 0])
    assert found.notes == ()


def test_text_is_learned_whole_and_cut_to_fit_a_row(tmp_path: Path) -> None:
    found = corpus(tmp_path / "rows.jsonl", [{"text": "abcabca"}, {"token_ids": [1, 2, 3]}], kind="text", longest=3)
    assert [ids(row) for row in found.demonstrations] == [([1], [2, 3]), ([1], [2, 3]), ([1], [2, 3])]  # the last piece has one token


def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    user = {"role": "user", "content": "a"}
    rows = [
        {"prompt_ids": [1], "completion_ids": [2]},
        "no json\n",
        {"prompt_ids": [1], "completion_ids": [99]},
        {"prompt_ids": [1] * 9, "completion_ids": [1] * 9},
        {"prompt_ids": [1], "completion_ids": []},
        {"messages": [user, user]},
        [1],
    ]
    found = corpus(tmp_path / "rows.jsonl", rows)
    assert len(found.demonstrations) == 1
    assert [note.partition(": ")[0] for note in found.notes] == [f"rows.jsonl line {line}" for line in range(2, 8)]
    with pytest.raises(UsageError, match="no usable row; the first"):
        corpus(tmp_path / "bad.jsonl", rows[1:])
    with pytest.raises(UsageError, match="does not exist"):
        read_corpus(StreamSection(name="s", file=str(tmp_path / "none"), samples_per_step=1), 0, TOKENIZER, None, 9)


def test_each_pass_has_every_row_once_and_a_step_is_a_pure_function(tmp_path: Path) -> None:
    found = corpus(tmp_path / "rows.jsonl", [{"prompt_ids": [1], "completion_ids": [1 + place]} for place in range(5)], samples=2)
    steps = [[int(row.completion_ids[0]) for row in found.rows(step)] for step in range(5)]
    assert sorted(np.concatenate(steps)[:5]) == sorted(np.concatenate(steps)[5:]) == [1, 2, 3, 4, 5]
    assert [[int(row.completion_ids[0]) for row in found.rows(step)] for step in (4, 0)] == [steps[4], steps[0]]
