"""Texts as they are compared: two texts that differ only in case, spacing and punctuation are one. Signs of mathematics count.

`same_text` decides equality, and keeps + - * / brackets and the like apart, since 3+4 is not 3-4. `words` is for overlaps.
"""

import re
import unicodedata
from collections.abc import Iterator

_DROPPED = frozenset(".,;:?'\"$`\u2018\u2019\u201c\u201d\u2026")
_PART = re.compile(r"[0-9]+(?:[.,:][0-9]+)*|[^\W_]+|\S")
_SHOUT = re.compile(r"(?<=[^\W\d_][^\W\d_])[\"'\u2019\u201d]*!+")  # behind a word; 5! and n! are factorials
_WORD = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[^\W_]+")

Gram = tuple[str, ...]


def same_text(text: str) -> str:
    """A key that equal texts share."""
    return " ".join(part for part in _PART.findall(_SHOUT.sub("", _plain(text))) if part not in _DROPPED)


def words(text: str) -> list[str]:
    """Words and numbers in order, without any sign."""
    return _WORD.findall(_plain(text))


def grams(parts: list[str], length: int) -> Iterator[Gram]:
    """Every run of `length` words; none where there are fewer."""
    return (tuple(parts[start : start + length]) for start in range(len(parts) - length + 1))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
