"""tokenizer.json and tokenizer_config.json rebuilt from the keys of a GGUF file. Byte-level BPE only.

A GGUF file has tokens, merges and the name of a pre-tokenizer; what that name means has to be known here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from slipstream.core.errors import UsageError
from slipstream.models.spec import ModelSpec
from slipstream.weights.gguf_metadata import Metadata, listed, special_id

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types of ggml that are matched as a whole
_UNUSED = 5  # at the end of the list: rows of the embedding without a token
_SPLIT = (  # words of the cl100k kind; what differs is how many digits stay together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What the name of a pre-tokenizer stands for."""

    split: str | None  # regular expression of words; None: digits one by one, then GPT-2's words
    nfc: bool = False  # text is brought to Unicode's normal form C first
    ignore_merges: bool = False  # a word that is a token stays whole


_KINDS: Mapping[str, _Kind] = {
    "smollm": _Kind(split=None),
    "qwen2": _Kind(split=_SPLIT.replace("DIGITS", ""), nfc=True),
    "llama-bpe": _Kind(split=_SPLIT.replace("DIGITS", "{1,3}"), ignore_merges=True),
}


def tokenizer_texts(metadata: Metadata, source: Path, spec: ModelSpec) -> dict[str, bytes]:
    """The two files by name. Raises UsageError for a tokenizer of another kind or keys that contradict each other."""
    tokens = listed(metadata, "tokenizer.ggml.tokens", str, source)
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: special_id(metadata, key, source) for name, key in names.items()}
    special = {name: tokens[id] for name, id in ids.items() if id is not None}
    backend = _backend(metadata, tokens, source, spec)
    if metadata.get("tokenizer.ggml.add_bos_token") is True and "bos_token" in special:
        _begin_with(backend, special["bos_token"], tokens.index(special["bos_token"]))
    config = _config(metadata, special, source, spec)
    return {"tokenizer.json": backend.to_str(pretty=True).encode(), "tokenizer_config.json": config}


def _backend(metadata: Metadata, tokens: list[str], source: Path, spec: ModelSpec) -> Tokenizer:
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or not isinstance(pre, str) or pre not in _KINDS:
        known = ", ".join(_KINDS)
        raise UsageError(f"{source}: tokenizer {model!r} with pre-tokenizer {pre!r} is not supported; only 'gpt2' with {known} is")
    kind = _KINDS[pre]
    types = listed(metadata, "tokenizer.ggml.token_type", int, source)
    known = max((id + 1 for id, type in enumerate(types) if type != _UNUSED), default=0)
    tokens, types = tokens[:known], types[:known]
    merges = [tuple(merge.split(" ")) for merge in listed(metadata, "tokenizer.ggml.merges", str, source)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    _check(vocabulary, tokens, types, merges, source, spec)
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind.ignore_merges))  # pyright: ignore[reportArgumentType] - pairs, checked above
    if kind.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(kind)
    backend.decoder = decoders.ByteLevel()
    whole = [(token, type) for token, type in zip(tokens, types, strict=True) if type in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token, type in whole if type != _USER_DEFINED])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token, type in whole if type == _USER_DEFINED])
    return backend


def _pre_tokenizer(kind: _Kind) -> Any:
    if kind.split is None:
        first = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(kind.split), "isolated")
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind.split is None)])


def _begin_with(backend: Tokenizer, token: str, id: int) -> None:
    """Texts encoded with special tokens begin with this one."""
    template = processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, id)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])


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


def _config(metadata: Metadata, special: Mapping[str, str], source: Path, spec: ModelSpec) -> bytes:
    """tokenizer_config.json: special tokens by name and the chat template where there is one."""
    tree: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.context,
        **special,
    }
    if template := metadata.get("tokenizer.chat_template"):
        if not isinstance(template, str):
            raise UsageError(f"{source}: tokenizer.chat_template is not a text; fetch it again")
        tree["chat_template"] = template
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()
