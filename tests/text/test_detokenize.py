"""Streamed text is the text: pieces put together are what the tokenizer makes of all ids, at a cost that grows with their number."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from slipstream.core.errors import UsageError
from slipstream.text.detokenize import Decoding, Detokenizer, read_decoding
from slipstream.text.tokenizer import Tokenizer, character_tokenizer
from tests.text.small_tokenizers import byte_level, metaspace, with_decoder

KINDS = {
    "byte level": byte_level(special=("<|a|>", "<|end|>"), plain=("<tool é>", "a b")),
    "metaspace, stripped": metaspace(plain=("<note>", " x")),
    "metaspace, whole": metaspace(strip=False),
    "two spaces stripped": with_decoder(
        metaspace(), decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    ),
    "metaspace decoder": with_decoder(metaspace(), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])),
    "byte fallback alone": with_decoder(metaspace(), decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])),
    "word pieces": with_decoder(byte_level(), decoders.WordPiece(prefix="Ġ")),
    "no decoder": with_decoder(byte_level(), None),
    "characters": character_tokenizer("ab é😀"),
}
DECODINGS = {name: read_decoding(tokenizer) for name, tokenizer in KINDS.items()}
kinds = pytest.mark.parametrize("kind", KINDS)


def stream(detokenizer: Detokenizer, ids: Sequence[int], cut: Callable[[int], int] = lambda _: 1) -> list[str]:
    """The pieces of `ids` given some at a time, then the rest."""
    pieces, start = [], 0
    while start < len(ids):
        step = cut(start)
        pieces.append(detokenizer.push(ids[start : start + step]))
        start += step
    return [*pieces, detokenizer.flush()]


def id_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids known and unknown, with special ones and lone bytes: more than any model would sample."""
    known = tokenizer.known_tokens
    rare = [id for token, id in tokenizer.backend.get_vocab().items() if token.startswith("<") or token in "▁Ġ"]
    return st.lists(st.one_of(st.integers(0, known + 2), st.sampled_from(rare or [0]), st.integers(0, min(12, known))), max_size=40)


@kinds
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_make_the_whole_text(kind: str, data: st.DataObject) -> None:
    ids = data.draw(id_lists(KINDS[kind]))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(ids), max_size=len(ids)))
    assert "".join(stream(Detokenizer(DECODINGS[kind]), ids, lambda start: sizes[start])) == KINDS[kind].decode(ids)


@kinds
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_shown_is_never_taken_back(kind: str, data: st.DataObject) -> None:
    """Settled text begins the text of every continuation."""
    ids = data.draw(id_lists(KINDS[kind]))
    more = data.draw(id_lists(KINDS[kind]))
    shown = Detokenizer(DECODINGS[kind]).push(ids)
    assert KINDS[kind].decode([*ids, *more]).startswith(shown)


@kinds
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_after_a_prompt_the_text_is_what_it_adds(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    prompt = data.draw(id_lists(tokenizer))
    prompt_text = "".join(stream(Detokenizer(DECODINGS[kind]), prompt))
    settled = Detokenizer(DECODINGS[kind]).push(prompt)
    ids = data.draw(id_lists(tokenizer))
    if settled == prompt_text:  # no character is begun in the prompt
        assert prompt_text + "".join(stream(Detokenizer(DECODINGS[kind], after=prompt), ids)) == tokenizer.decode([*prompt, *ids])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_text_goes_there_and_back(text: str) -> None:
    for kind in ("byte level", "metaspace, stripped"):
        ids = KINDS[kind].encode(text).tolist()
        assert "".join(stream(Detokenizer(DECODINGS[kind]), ids)) == KINDS[kind].decode(ids)


def test_a_split_character_waits_for_its_last_byte() -> None:
    tokenizer = byte_level()
    ids = [tokenizer.backend.token_to_id(token) for token in ("a", "ð", "Ł", "ĺ", "Ģ", "b")]
    assert stream(Detokenizer(read_decoding(tokenizer)), ids) == ["a", "", "", "", "😀", "b", ""]


def test_a_run_of_byte_tokens_waits_for_its_end() -> None:
    """One wrong byte makes the whole run unreadable, so a run that looks whole is not settled."""
    tokenizer = metaspace()
    emoji = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    decoding = read_decoding(tokenizer)
    a, wrong = tokenizer.backend.token_to_id("a"), tokenizer.backend.token_to_id("<0xFF>")
    assert stream(Detokenizer(decoding), [*emoji, a]) == ["", "", "", "", "😀a", ""]
    assert stream(Detokenizer(decoding), [*emoji, wrong, a])[-2:] == ["�����a", ""]
    assert stream(Detokenizer(decoding), emoji)[-1] == "😀"
    assert stream(Detokenizer(decoding), emoji[:3])[-1] == "���"


def test_the_space_of_the_first_word_depends_on_what_is_before() -> None:
    tokenizer = metaspace()
    decoding = read_decoding(tokenizer)
    word, end = tokenizer.backend.token_to_id("▁hello"), tokenizer.backend.token_to_id("</s>")
    assert word is not None
    assert stream(Detokenizer(decoding), [word, word]) == ["hello", " hello", ""]
    assert stream(Detokenizer(decoding, after=[word, end]), [word]) == [" hello", ""]
    assert stream(Detokenizer(decoding, after=[end]), [word]) == ["hello", ""]
    assert stream(Detokenizer(read_decoding(metaspace(strip=False))), [word, word])[0] == " hello"


def test_special_tokens_make_no_text_and_do_not_break_a_character() -> None:
    tokenizer = byte_level()
    (end,) = tokenizer.stop_ids
    parts = [tokenizer.backend.token_to_id(token) for token in ("Ã", "©")]
    assert stream(Detokenizer(read_decoding(tokenizer)), [end, parts[0], end, parts[1], end]) == ["", "", "", "é", "", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingTokenizer(Tokenizer):
    """Counts the ids that it decodes."""

    lengths: list[int]

    def decode(self, token_ids: Sequence[int]) -> str:
        self.lengths.append(len(token_ids))
        return self.backend.decode([int(token) for token in token_ids], skip_special_tokens=True)


@kinds
@pytest.mark.parametrize("contents", ["random", "bytes", "spaces", "special", "first bytes, then spaces"])
def test_the_work_grows_with_the_length(kind: str, contents: str) -> None:
    """Ids decoded per id are few, on average and after any prompt, whatever the ids are."""
    tokenizer = KINDS[kind]
    counting = CountingTokenizer(backend=tokenizer.backend, stop_ids=tokenizer.stop_ids, lengths=[])
    known = DECODINGS[kind]
    decoding = Decoding(tokenizer=counting, byte_level=known.byte_level, byte_fallback=known.byte_fallback, special_ids=known.special_ids)
    vocabulary = tokenizer.backend.get_vocab()
    byte = vocabulary.get("<0xFF>", vocabulary.get("ÿ", 1))
    space = vocabulary.get("▁", vocabulary.get("Ġ", 2))
    draw = random.Random(7)
    count = 2000
    ids = {
        "random": [draw.randrange(tokenizer.known_tokens) for _ in range(count)],
        "bytes": [byte] * count,
        "spaces": [space] * count,
        "special": [tokenizer.stop_ids[0]] * count,
        "first bytes, then spaces": [byte] * (count // 2) + [space] * (count // 2),
    }[contents]
    stream(Detokenizer(decoding, after=ids), ids)
    assert sum(counting.lengths) < 12 * count
    counting.lengths.clear()
    assert "".join(stream(Detokenizer(decoding), ids)) == tokenizer.decode(ids)
    assert sum(counting.lengths) < 8 * count


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.CTC(),
        decoders.BPEDecoder(),
    ],
)
def test_a_decoder_that_settles_text_late_is_refused(decoder: object) -> None:
    with pytest.raises(UsageError, match="cannot be streamed"):
        read_decoding(with_decoder(metaspace(), decoder))
