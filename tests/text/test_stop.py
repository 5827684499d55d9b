"""Stop strings are found across any pieces as a search of the whole text finds them, and no part of one is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import UsageError
from slipstream.text.detokenize import Detokenizer, read_decoding
from slipstream.text.stop import StopMatch, StopScanner
from tests.text.small_tokenizers import byte_level

letters = st.text("ab", max_size=5)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def naive(pieces: list[str], stops: list[str]) -> StopMatch | None:
    """The first character at which any stop string is complete, the longest of those, by trying all."""
    text = "".join(pieces)
    for end in range(len(text) + 1):
        here = sorted((stop for stop in stops if text[:end].endswith(stop)), key=len)
        if here:
            tokens = next(count for count in range(len(pieces) + 1) if len("".join(pieces[:count])) >= end)
            return StopMatch(stop=here[-1], characters=end - len(here[-1]), tokens=tokens)
    return None


def scan(pieces: list[str], stops: list[str]) -> tuple[StopScanner, list[str]]:
    scanner, shown = StopScanner(stops), []
    for piece in pieces:
        shown.append(scanner.push(piece))
        if scanner.match:
            break
    return scanner, shown


@settings(max_examples=1000, deadline=None)
@given(st.lists(letters, max_size=10), stop_lists)
def test_it_finds_what_a_search_of_the_whole_text_finds(pieces: list[str], stops: list[str]) -> None:
    scanner, shown = scan(pieces, stops)
    expected = naive(pieces, stops)
    assert scanner.match == expected
    text = "".join(pieces)
    assert "".join(shown) + scanner.flush() == (text if expected is None else text[: expected.characters])


@settings(max_examples=500, deadline=None)
@given(st.lists(letters, max_size=8), letters, stop_lists)
def test_what_is_shown_belongs_to_the_completion_however_it_goes_on(pieces: list[str], more: str, stops: list[str]) -> None:
    """And no more is held back than need be: some continuation would make the first held character part of a stop string."""
    scanner, shown = scan(pieces, stops)
    if scanner.match:
        return
    end = naive([*pieces, more], stops)
    assert end is None or len("".join(shown)) <= end.characters
    held = "".join(pieces)[len("".join(shown)) :]
    assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "match"),
    [
        (["###"], ["a#", "#b", "##", "#c"], ["a", "##b", "", ""], StopMatch(stop="###", characters=4, tokens=4)),
        (["abcd", "bc"], ["ab", "c"], ["", "a"], StopMatch(stop="bc", characters=1, tokens=2)),
        (["c", "abc"], ["xabc"], ["x"], StopMatch(stop="abc", characters=1, tokens=1)),
        (["aab"], ["aa", "", "ab"], ["", "", "a"], StopMatch(stop="aab", characters=1, tokens=3)),
        (["x", "y"], ["ay", "x"], ["a"], StopMatch(stop="y", characters=1, tokens=1)),
        ("END", ["E", "N", "D"], ["", "", ""], StopMatch(stop="END", characters=0, tokens=3)),
        ([], ["a", "b"], ["a", "b"], None),
    ],
)
def test_cases_by_hand(stops: list[str], pieces: list[str], shown: list[str], match: StopMatch | None) -> None:
    scanner, found = scan(pieces, stops)
    assert (found, scanner.match) == (shown, match)


def test_the_rest_comes_at_the_end_and_may_hold_a_stop_string() -> None:
    scanner = StopScanner(["stop!"])
    assert scanner.push("do st") == "do "
    assert scanner.flush() == "st"
    scanner = StopScanner(["stop!"])
    scanner.push("do st")
    assert scanner.flush("op! now") == ""
    assert scanner.match == StopMatch(stop="stop!", characters=3, tokens=1)
    assert scanner.flush() == ""


def test_misuse() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        StopScanner(["a", ""])
    scanner = StopScanner(["a"])
    scanner.push("a")
    with pytest.raises(ValueError, match="has ended"):
        scanner.push("b")


@settings(max_examples=200, deadline=None)
@given(st.text("ab 東😀é", max_size=12), st.text("ab 東😀é", min_size=1, max_size=3))
def test_token_by_token_from_ids(text: str, stop: str) -> None:
    """The match names the first token with which the text so far holds the stop string."""
    tokenizer = byte_level()
    ids = tokenizer.encode(text).tolist()
    stream, scanner = Detokenizer(read_decoding(tokenizer)), StopScanner([stop])
    for token_id in ids:
        scanner.push(stream.push([token_id]))
        if scanner.match:
            break
    counts = [count for count in range(len(ids) + 1) if stop in tokenizer.decode(ids[:count])]
    assert (scanner.match.tokens if scanner.match else None) == (counts[0] if counts else None)
