"""config.json and generation_config.json of a directory: read, written, refused under their names. What the fields mean: tests/models."""

import json
from pathlib import Path

import pytest

from slipstream.core.errors import UsageError
from slipstream.weights.hf_config import config_tree, read_spec
from slipstream.weights.special_ids import SpecialIds, read_special_ids, read_stop_ids
from tests.weights.models import SPECIAL, TINY

LEAST = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def configured(directory: Path, **fields: object) -> Path:
    (directory / "config.json").write_text(json.dumps(LEAST | fields))
    return directory


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_tree(TINY, SPECIAL, "bfloat16")))
    assert read_spec(tmp_path) == TINY
    assert read_special_ids(tmp_path) == SPECIAL


def test_all_problems_are_told_at_once_under_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_spec(configured(tmp_path, hidden_act="relu", mlp_bias=True, surprise=1))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path / 'config.json'} describes a model that cannot be used, 3 problems:"
    assert [line.split(" = ")[0] for line in lines[1:]] == ["  mlp_bias", "  hidden_act", "  surprise"]


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kv_heads = 3 does not divide heads = 4"):
        read_spec(configured(tmp_path, num_key_value_heads=3))


@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', "\xff"])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"config\.json"):
        read_spec(tmp_path)


def test_an_absent_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("config", "generation", "stops"),
    [
        ({"eos_token_id": 5}, None, (5,)),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8]}, (7, 8)),
        ({"eos_token_id": [5]}, {"pad_token_id": 0}, (5,)),
    ],
)
def test_stop_ids_come_from_the_generation_config_first(
    tmp_path: Path, config: dict, generation: dict | None, stops: tuple[int, ...]
) -> None:
    configured(tmp_path, **config)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_stop_ids(tmp_path) == stops


def test_a_model_that_never_stops_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add the id of the stop token"):
        read_stop_ids(configured(tmp_path))
    with pytest.raises(UsageError, match="eos_token_id = 'x'"):
        read_stop_ids(configured(tmp_path, eos_token_id="x"))


def test_special_ids_that_are_absent_are_none(tmp_path: Path) -> None:
    assert read_special_ids(configured(tmp_path, eos_token_id=0)) == SpecialIds(bos=None, eos=(0,), pad=None)
