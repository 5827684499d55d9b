"""Shape and tokenizer of a model directory fit each other, or the run is refused before any weight is read."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from slipstream.core.errors import UsageError
from slipstream.runtime.pretrained import read_pretrained
from slipstream.weights.hf_config import config_tree
from slipstream.weights.special_ids import SpecialIds
from tests.weights.models import TINY


def directory(path: Path, letters: str, *added: str, eos: int = 2) -> Path:
    """A model of 11 embedding rows with a tokenizer of single letters."""
    backend = Backend(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    backend.add_special_tokens([AddedToken(token, special=True) for token in added])
    backend.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(config_tree(TINY, SpecialIds(bos=None, eos=(eos,), pad=None), "float32")))
    return path


@pytest.mark.parametrize(("letters", "known"), [("abcdefghijk", None), ("abcdefgh", 8)])
def test_rows_without_a_token_are_counted(tmp_path: Path, letters: str, known: int | None) -> None:
    spec, tokenizer = read_pretrained(directory(tmp_path, letters))
    assert spec.known_tokens == known
    assert tokenizer.encode("cab").tolist() == [2, 0, 1]


def test_added_tokens_count_as_known(tmp_path: Path) -> None:
    assert read_pretrained(directory(tmp_path, "abcdefgh", "<x>"))[0].known_tokens == 9


def test_ids_beyond_the_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"token ids up to 12, config\.json says vocab_size = 11"):
        read_pretrained(directory(tmp_path, "abcdefghijklm"))


def test_an_added_token_without_a_row_is_text(tmp_path: Path) -> None:
    spec, tokenizer = read_pretrained(directory(tmp_path, "abcdefghi<>", "<a>", "<b>"))
    assert spec.known_tokens is None
    assert tokenizer.encode("<a>").tolist() == [9, 0, 10]


def test_a_stop_token_that_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"eos_token_id = 9 is no token of tokenizer\.json, whose ids end at 7"):
        read_pretrained(directory(tmp_path, "abcdefgh", eos=9))
