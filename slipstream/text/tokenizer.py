"""A tokenizer: the `tokenizers` library behind the few calls that Slipstream needs. Built from an alphabet or read from a directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from slipstream.core.errors import UsageError

END = "<end>"  # the stop token of character tokenizers
_OLDER_FORMATS = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "tekken.json")  # of other tokenizer libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Ids of text and text of ids, with the ids that end a completion."""

    backend: Backend
    stop_ids: tuple[int, ...]  # tokens that end a completion

    @property
    def vocab_size(self) -> int:
        """How many tokens are known, special ones included. Ids may have gaps: `known_tokens` bounds them."""
        return self.backend.get_vocab_size()

    @property
    def known_tokens(self) -> int:
        """The largest token id + 1, added tokens included: rows of an embedding from here on are padding. Walks the vocabulary."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> np.ndarray:
        """Token ids int32 of text, nothing added; special tokens written out in the text become their ids.

        Raises UsageError for a text that the tokenizer has no tokens for, e.g. a character outside an alphabet.
        """
        try:
            ids = self.backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises no narrower one
            raise UsageError(f"the tokenizer has no tokens for the text {text[:80]!r}: {error}") from error
        return np.array(ids, np.int32)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.backend.decode([int(token) for token in token_ids], skip_special_tokens=True)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json into `directory`."""
        self.backend.save(str(directory / "tokenizer.json"))


def character_tokenizer(alphabet: str) -> Tokenizer:
    """One token a character of `alphabet`, in order after the stop token (id 0). A character outside it is an error."""
    vocabulary = {END: 0} | {character: index + 1 for index, character in enumerate(alphabet)}
    backend = Backend(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END])
    return Tokenizer(backend=backend, stop_ids=(0,))


def read_tokenizer(directory: Path, stop_ids: Sequence[int]) -> Tokenizer:
    """The tokenizer of a model directory. Raises UsageError when tokenizer.json is absent or broken."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"model directory {directory} has no tokenizer.json; {_way_to_tokenizer(directory)}")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:
        raise UsageError(f"{path} is not a readable tokenizer: {error}") from error
    return Tokenizer(backend=backend, stop_ids=tuple(stop_ids))


def _way_to_tokenizer(directory: Path) -> str:
    """What to do, by the files that are there."""
    if not directory.is_dir():
        return "there is no such directory"
    older = [name for name in _OLDER_FORMATS if (directory / name).is_file()]
    if not older:
        return "copy it from the model's repository"
    convert = f"from transformers import AutoTokenizer as T; T.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
    return f'make it from {" and ".join(older)}, where transformers (with sentencepiece) is installed: python -c "{convert}"'
