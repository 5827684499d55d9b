"""The keys of a GGUF file: read by name, turned into `ModelSpec` and special token ids. No tensors, no tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError, near_names
from slipstream.models.spec import ModelSpec
from slipstream.weights.special_ids import SpecialIds

Metadata = Mapping[str, Any]

_ARCHITECTURE = "llama"
_SUPPORTED: Mapping[str, Any] = {  # keys that change the mathematics, with the value that leaves it as it is
    "expert_count": 0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "attention.sliding_window": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
}
_REQUIRED = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")


def read_metadata(reader: Any, source: Path) -> Metadata:
    """All keys with their values as Python objects. Raises UsageError for a model of another architecture."""
    try:
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, TypeError) as error:
        raise UsageError(f"{source} has keys that cannot be read ({error}); fetch it again") from error
    architecture = metadata.get("general.architecture")
    if architecture != _ARCHITECTURE:
        raise UsageError(f"{source}: general.architecture = {architecture!r} is not supported; only {_ARCHITECTURE!r} is")
    return metadata


def spec_from(metadata: Metadata, source: Path, *, vocab: int, tied: bool) -> ModelSpec:
    """The decoder's shape; `vocab` and `tied` follow from the tensors. Raises UsageError with every key that does not fit."""
    keys = {name.removeprefix("llama."): value for name, value in metadata.items() if name.startswith("llama.")}
    problems = _problems(keys) if vocab else ["token_embd.weight: absent", *_problems(keys)]
    if not problems:
        heads = keys["attention.head_count"]
        try:
            return ModelSpec(
                vocab=vocab,
                d_model=keys["embedding_length"],
                layers=keys["block_count"],
                heads=heads,
                kv_heads=keys.get("attention.head_count_kv") or heads,
                head_dim=_head_dim(keys),
                d_ff=keys["feed_forward_length"],
                rope_theta=_short(keys.get("rope.freq_base", 10_000.0)),
                norm_eps=_short(keys.get("attention.layer_norm_rms_epsilon", 1e-5)),
                tied=tied,
                context=keys["context_length"],
            )
        except ValueError as error:
            problems = [str(error)]
    raise UsageError("\n  ".join([f"{source} describes a model that cannot be used:", *problems]))


def _problems(keys: Metadata) -> list[str]:
    """Keys that are absent, of the wrong kind, or change the mathematics beyond what the decoder can do."""
    problems = [f"llama.{name}: absent" for name in _REQUIRED if name not in keys]
    counts = [name for name in (*_REQUIRED, "attention.head_count_kv") if name in keys]
    problems += [f"llama.{name} = {keys[name]!r}: must be a whole number above 0" for name in counts if not _is_count(keys[name])]
    for name, accepted in _SUPPORTED.items():
        if keys.get(name, accepted) != accepted:
            problems.append(f"llama.{name} = {keys[name]!r}: not supported; only {accepted!r} is")
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if not problems and keys.get(name, _head_dim(keys)) != _head_dim(keys):
            problems.append(f"llama.{name} = {keys[name]!r}: not supported; only the width of a head, {_head_dim(keys)}, is")
    return problems


def _head_dim(keys: Metadata) -> int:
    return keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def special_ids(metadata: Metadata) -> SpecialIds:
    """Special token ids; the end of a turn (eot) ends a completion as the end of the text (eos) does."""
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "padding")}
    stops = dict.fromkeys(id for id in (ids["eos"], ids["eot"]) if id is not None)
    return SpecialIds(bos=ids["bos"], eos=tuple(stops), pad=ids["padding"])


def required(metadata: Metadata, name: str, source: Path) -> Any:
    """The value of a key that must be there."""
    if name not in metadata:
        raise UsageError(f"{source} has no key {name}; {near_names(name, metadata)}")
    return metadata[name]


def _short(value: float) -> float:
    """The shortest decimal of a float32: 1e-05 for the stored 9.999999747378752e-06."""
    return float(str(np.float32(value)))
