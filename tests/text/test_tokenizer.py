"""Tokenizers: ids of texts, the bound of ids, and what is told when there is none."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from slipstream.core.errors import UsageError
from slipstream.text.tokenizer import Tokenizer, character_tokenizer, read_tokenizer
from tests.text.small_tokenizers import byte_level, metaspace


def test_known_tokens_bound_the_ids_also_where_they_have_gaps() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    tokenizer = Tokenizer(backend=backend, stop_ids=(0,))
    assert (tokenizer.vocab_size, tokenizer.known_tokens) == (2, 8)
    backend.add_special_tokens(["<end>"])  # takes an id of the gap
    assert (backend.token_to_id("<end>"), tokenizer.known_tokens) == (2, 8)


def test_known_tokens_count_the_added() -> None:
    tokenizer = Tokenizer(backend=Backend(models.WordLevel({"a": 0}, unk_token="a")), stop_ids=(0,))
    tokenizer.backend.add_tokens(["added"])
    tokenizer.backend.add_special_tokens(["<end>"])
    assert tokenizer.known_tokens == 3


@pytest.mark.parametrize("tokenizer", [byte_level(), metaspace(), character_tokenizer("abc")])
def test_no_id_of_a_text_is_past_the_known(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("abc").tolist(), *tokenizer.stop_ids]
    assert max(ids) < tokenizer.known_tokens
    assert tokenizer.backend.id_to_token(tokenizer.known_tokens) is None
    assert tokenizer.backend.id_to_token(tokenizer.known_tokens - 1) is not None


def test_a_tokenizer_that_knows_nothing() -> None:
    assert Tokenizer(backend=Backend(models.BPE()), stop_ids=()).known_tokens == 0


def test_a_text_without_tokens_is_told() -> None:
    with pytest.raises(UsageError, match="no tokens for the text 'abx'"):
        character_tokenizer("ab").encode("abx")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "has no tokenizer.json; copy it from the model's repository"),
        (("tokenizer.model",), r"make it from tokenizer.model, where transformers .* is installed: python -c .*save_pretrained"),
        (("vocab.json", "merges.txt"), "make it from vocab.json and merges.txt"),
    ],
)
def test_a_directory_without_tokenizer_tells_the_file_and_the_way_to_it(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=message) as told:
        read_tokenizer(tmp_path, (0,))
    assert str(tmp_path) in str(told.value)
    assert told.value.exit_code == 2


def test_a_missing_directory_and_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such directory"):
        read_tokenizer(tmp_path / "absent", (0,))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="is not a readable tokenizer"):
        read_tokenizer(tmp_path, (0,))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path, (0,))


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    byte_level().save(tmp_path)
    assert read_tokenizer(tmp_path, (1,)).encode("hello 😀").tolist() == byte_level().encode("hello 😀").tolist()
