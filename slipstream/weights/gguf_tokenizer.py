"""tokenizer.json and tokenizer_config.json rebuilt from the keys of a GGUF file. Byte-level BPE of the SmolLM kind only.

A GGUF file has tokens, merges and the name of a pre-tokenizer; what that name means has to be known here.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slipstream.core.errors import UsageError
from slipstream.models.spec import ModelSpec
from slipstream.weights.gguf_metadata import Metadata, required

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types of ggml that are matched as a whole


def _smollm() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


_PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {"smollm": _smollm}


def tokenizer_texts(metadata: Metadata, source: Path, spec: ModelSpec) -> dict[str, bytes]:
    """The two files by name. Raises UsageError for a tokenizer of another kind or keys that contradict each other."""
    tokens = required(metadata, "tokenizer.ggml.tokens", source)
    backend = _backend(metadata, tokens, source, spec)
    return {"tokenizer.json": backend.to_str(pretty=True).encode(), "tokenizer_config.json": _config(metadata, tokens, spec)}


def _backend(metadata: Metadata, tokens: list[str], source: Path, spec: ModelSpec) -> Tokenizer:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise UsageError(f"{source}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; only 'gpt2' with {known} is")
    types = required(metadata, "tokenizer.ggml.token_type", source)
    merges = [tuple(merge.split(" ")) for merge in required(metadata, "tokenizer.ggml.merges", source)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    _check(vocabulary, tokens, types, merges, source, spec)
    backend = Tokenizer(models.BPE(vocabulary, merges))  # pyright: ignore[reportArgumentType] - pairs, checked above
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    whole = [(token, type) for token, type in zip(tokens, types, strict=True) if type in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token, type in whole if type != _USER_DEFINED])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token, type in whole if type == _USER_DEFINED])
    return backend


def _check(
    vocabulary: Mapping[str, int], tokens: list[str], types: list[int], merges: list[tuple[str, ...]], source: Path, spec: ModelSpec
) -> None:
    """The keys must fit each other and the embedding: an id without an embedding row would be read out of bounds."""
    problems = []
    if len(tokens) > spec.vocab:
        problems.append(f"{len(tokens)} tokens, but the embedding has {spec.vocab} rows")
    if len(vocabulary) < len(tokens):
        problems.append(f"{len(tokens) - len(vocabulary)} tokens occur twice")
    if len(types) != len(tokens):
        problems.append(f"{len(types)} token types for {len(tokens)} tokens")
    broken = [merge for merge in merges if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys()]
    if broken:
        problems.append(f"{len(broken)} merges of pieces that are no tokens, the first: {' '.join(broken[0])!r}")
    if problems:
        raise UsageError("\n  ".join([f"{source} has a tokenizer that contradicts itself:", *problems]))


def _config(metadata: Metadata, tokens: list[str], spec: ModelSpec) -> bytes:
    """tokenizer_config.json: special tokens by name and the chat template where there is one."""
    tree: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.context,
    }
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")):
        id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if id is not None and id < len(tokens):
            tree[name] = tokens[id]
    if template := metadata.get("tokenizer.chat_template"):
        tree["chat_template"] = template
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()
