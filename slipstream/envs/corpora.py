"""Static corpora for supervised streams: JSONL rows as demonstrations, in an order that is a pure function of seed and step.

A row is one of: `prompt_ids` and `completion_ids`; `messages`, of which the last is learned; `text` or `token_ids`, learned whole and
cut into pieces that fit a packed row. What cannot be used is left out at the start and told in `notes`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.config.schema import StreamSection
from slipstream.core.errors import UsageError
from slipstream.core.records import Demonstration
from slipstream.envs.datasets import numbered_lines
from slipstream.envs.order import row_at
from slipstream.text.chat import ChatTemplate
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCorpus:
    """The rows of one stream of a run (see `core.ports.Corpus`)."""

    name: str
    seed: int
    samples_per_step: int
    demonstrations: tuple[Demonstration, ...]  # in the file's order
    notes: tuple[str, ...]  # what was left out and why

    def rows(self, step: int) -> list[Demonstration]:
        """Each pass over the corpus visits every row once, in an order of its own."""
        first = step * self.samples_per_step
        places = (row_at(first + index, len(self.demonstrations), self.seed) for index in range(self.samples_per_step))
        return [self.demonstrations[place] for place in places]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """What turns one row into ids."""

    kind: str
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    longest: int  # tokens

    def demonstrations(self, row: dict[str, Any]) -> list[Demonstration]:
        """Raises UsageError with the reason when the row cannot be used."""
        if self.kind == "text":
            ids = self._ids(row["token_ids"], "token_ids") if "token_ids" in row else self.tokenizer.encode(_text(row, "text"))
            pieces = [ids[start : start + self.longest] for start in range(0, len(ids), self.longest)]
            return [Demonstration(prompt_ids=piece[:1], completion_ids=piece[1:]) for piece in pieces if len(piece) > 1]
        if "messages" in row:
            prompt, completion = self._conversation(row["messages"])
        else:
            prompt, completion = (self._ids(row.get(field), field) for field in ("prompt_ids", "completion_ids"))
        if not len(prompt) or not len(completion):
            raise UsageError("the prompt or the completion is empty")
        if len(prompt) + len(completion) > self.longest:
            raise UsageError(f"{len(prompt) + len(completion)} tokens, and batch.row_tokens = {self.longest}")
        return [Demonstration(prompt_ids=prompt, completion_ids=completion)]

    def _conversation(self, messages: Any) -> tuple[np.ndarray, np.ndarray]:
        """The ids before the last message and those of it, up to its stop token."""
        if self.chat is None:
            raise UsageError("messages need the chat template of a pretrained model")
        if not isinstance(messages, list) or len(messages) < 2 or not all(isinstance(one, dict) for one in messages):
            raise UsageError("messages is no list of two or more objects")
        if messages[-1].get("role") != "assistant":
            raise UsageError("the last message is not the assistant's")
        before = self.chat.render(messages[:-1], add_generation_prompt=True)
        whole = self.chat.render(messages)
        if not whole.startswith(before):
            raise UsageError("the chat template rewrites earlier messages")
        ids = self.tokenizer.encode(whole[len(before) :])
        stops = np.flatnonzero(np.isin(ids, self.tokenizer.stop_ids))
        return self.tokenizer.encode(before), ids[: stops[0] + 1] if len(stops) else ids

    def _ids(self, given: Any, field: str) -> np.ndarray:
        known = self.tokenizer.known_tokens
        if not isinstance(given, list) or not all(isinstance(token, int) and 0 <= token < known for token in given):
            raise UsageError(f"{field} is no list of token ids below {known}")
        return np.array(given, np.int32)


def read_corpus(config: StreamSection, seed: int, tokenizer: Tokenizer, chat: ChatTemplate | None, row_tokens: int) -> StaticCorpus:
    """The corpus of a stream's file. Raises UsageError when the file is absent, or has no usable row."""
    path = Path(config.file)
    reader = _Reader(kind=config.kind, tokenizer=tokenizer, chat=chat, longest=row_tokens)
    found: list[Demonstration] = []
    skipped: list[str] = []
    for line, content in numbered_lines(path):
        try:
            found += reader.demonstrations(_object(content))
        except UsageError as error:
            skipped.append(f"{path.name} line {line}: {error}; skipped")
    if not found:
        raise UsageError(f"stream {config.name}: {path} has no usable row{f'; the first: {skipped[0]}' if skipped else ''}")
    return StaticCorpus(
        name=config.name, seed=seed, samples_per_step=config.samples_per_step, demonstrations=tuple(found), notes=_told(skipped, path)
    )


def _told(skipped: Sequence[str], path: Path, limit: int = 20) -> tuple[str, ...]:
    more = len(skipped) - limit
    return (*skipped[:limit], f"{path.name}: {more} more lines skipped") if more > 0 else tuple(skipped)


def _object(content: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise UsageError("not an object")
    return tree


def _text(row: dict[str, Any], field: str) -> str:
    if not isinstance(row.get(field), str):
        raise UsageError(f"field {field!r} is no text")
    return row[field]
