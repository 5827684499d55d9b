"""A tokenizer: the `tokenizers` library behind the few calls that Slipstream needs. Built from an alphabet or read from a directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from slipstream.core.errors import UsageError

END = "<end>"  # the stop token of character tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Ids of text and text of ids, with the ids that end a completion."""

    backend: Backend
    stop_ids: tuple[int, ...]  # tokens that end a completion

    @property
    def vocab_size(self) -> int:
        """Token ids known, special ones included."""
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Token ids int32 of text, nothing added; special tokens written out in the text become their ids."""
        return np.array(self.backend.encode(text, add_special_tokens=False).ids, np.int32)

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
    if not path.exists():
        raise UsageError(f"model directory {directory} has no tokenizer.json")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:
        raise UsageError(f"{path} is not a readable tokenizer: {error}") from error
    return Tokenizer(backend=backend, stop_ids=tuple(stop_ids))
