"""Incremental detokenisation: token ids one or a few at a time, text as soon as no later token can change it.

The pieces put together are exactly what the tokenizer makes of all the ids at once. Each token is decoded in a window of a
few tokens, so the work of a completion grows with its length. Called by whoever streams text or looks for stop strings in it;
no part of training, where ids are the truth.

A byte-level tokenizer may split a character over tokens: its bytes are held until the character is whole. A tokenizer with
byte fallback (<0xF0>) decides about a run of byte tokens only at its end (one byte that is wrong makes all of them U+FFFD):
the run is held. Metaspace tokenizers strip the space before the first token of a text, and of no other: the window keeps a
token in front.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import UsageError
from slipstream.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_BY_TOKEN = frozenset({"Replace", "ByteFallback", "Fuse", "Metaspace", "WordPiece", "Strip"})  # decoders that treat each token by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a tokenizer makes text of ids; worked out once, shared by all streams."""

    tokenizer: Tokenizer
    byte_level: bool  # a token's text stands for bytes, one character a byte
    byte_fallback: bool  # tokens <0x00> to <0xFF> stand for bytes
    special_ids: frozenset[int]  # ids that no text is made of

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None where the id makes no text (special or unknown)."""
        return None if token_id in self.special_ids else self.tokenizer.backend.id_to_token(token_id)


def read_decoding(tokenizer: Tokenizer) -> Decoding:
    """Raises UsageError for a decoder whose text is settled only by later tokens."""
    backend = tokenizer.backend
    steps = _decoder_steps(backend.decoder)
    kinds = [step["type"] for step in steps]
    byte_level = kinds in (["ByteLevel"], ["ByteLevel", "Fuse"])
    if not byte_level and not _is_by_token(steps):
        raise UsageError(f"text of a tokenizer with the decoder {' + '.join(kinds)} cannot be streamed")
    special = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)
    return Decoding(tokenizer=tokenizer, byte_level=byte_level, byte_fallback="ByteFallback" in kinds, special_ids=special)


def _decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _is_by_token(steps: list[dict[str, Any]]) -> bool:
    """Whether a token's text depends on no later token: not where text is matched across tokens or stripped at its end."""
    kinds = [step["type"] for step in steps]
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    stripped = any(step["type"] == "Strip" and step["stop"] for step in steps)
    return set(kinds) <= _BY_TOKEN and "Replace" not in kinds[fused:] and not stripped


class Detokenizer:
    """The text of one stream of ids. `push` gives settled text, `flush` at the end what was held.

    By itself a stream is decoded as `tokenizer.decode` does. With `after` (the ids before it, e.g. the prompt's) its text is
    what it adds to theirs: then a metaspace tokenizer's first word keeps its space.
    """

    def __init__(self, decoding: Decoding, *, after: Sequence[int] = ()) -> None:
        self._stream = _ByteLevel(decoding) if decoding.byte_level else _ByToken(decoding)
        for token_id in _last_text(decoding, after):
            self._stream.push(token_id)

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these further ids settle; often of the last one only in part, or none."""
        return "".join(self._stream.push(int(token_id)) for token_id in token_ids)

    def flush(self) -> str:
        """The text still held, an unfinished character as U+FFFD. The stream has ended."""
        return self._stream.flush()


def _last_text(decoding: Decoding, token_ids: Sequence[int]) -> list[int]:
    """The shortest end of `token_ids` on which the text of further ids can depend."""
    found: list[int] = []
    for token_id in reversed(token_ids):
        token = decoding.token(int(token_id))
        if token is None:
            continue
        found.insert(0, int(token_id))
        whole = not (decoding.byte_fallback and _BYTE_TOKEN.fullmatch(token)) and decoding.tokenizer.decode(found)
        if whole and (not decoding.byte_level or not whole.endswith(_REPLACEMENT) or len(found) > 3):
            break
    return found


class _ByteLevel:
    """Bytes of tokens, decoded as UTF-8; what is held is at most three bytes."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._utf8 = getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        token = self._decoding.token(token_id)
        return "" if token is None else self._utf8.decode(_bytes_of(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _ByToken:
    """Tokens decoded one by one behind an anchor: settled tokens with a text, so that none is taken for the first."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._anchor: list[int] = []
        self._anchor_text = ""
        self._held: list[int] = []  # a run of byte tokens, or the first tokens while they have no text

    def push(self, token_id: int) -> str:
        token = self._decoding.token(token_id)
        if token is None:
            return ""
        self._held.append(token_id)
        if self._decoding.byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return ""
        return self._settle()

    def flush(self) -> str:
        return self._settle() if self._held else ""

    def _settle(self) -> str:
        decode = self._decoding.tokenizer.decode
        window = self._anchor + self._held
        text = decode(window)
        added = text[len(self._anchor_text) :]
        self._held = []
        for anchor in (window[-1:], window[-2:]):
            if anchor_text := decode(anchor):
                self._anchor, self._anchor_text = anchor, anchor_text
                return added
        if not self._anchor_text:
            self._anchor, self._anchor_text = window, text
        return added


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary: printable ones stand for themselves, the others for 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """A token with any character outside the alphabet (an added token such as "a b") stands for its own text."""
    known = [_ALPHABET.get(character) for character in token]
    return token.encode() if None in known else bytes(byte for byte in known if byte is not None)


def token_bytes(decoding: Decoding, token_id: int) -> bytes:
    """The bytes that one token stands for, by itself; of a special token its name. An id that is none: b""."""
    token = decoding.tokenizer.backend.id_to_token(token_id)
    if token is None:
        return b""
    if token_id in decoding.special_ids:
        return token.encode()
    if decoding.byte_level:
        return _bytes_of(token)
    if decoding.byte_fallback and _BYTE_TOKEN.fullmatch(token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()
