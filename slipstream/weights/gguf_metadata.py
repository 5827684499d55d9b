"""The keys of a GGUF file: read by name, turned into `ModelSpec` and special token ids. No tensors, no tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import UsageError, near_names
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.weights.special_ids import SpecialIds

Metadata = Mapping[str, Any]

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {  # arguments of ModelSpec; the names are those of families too
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}
_NEUTRAL: Mapping[str, Any] = {  # keys that change the mathematics, with the value that leaves it as it is
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "attention.sliding_window": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
}
_COUNTS = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
_WIDTHS = ("rope.dimension_count", "attention.key_length", "attention.value_length")
_NUMBERS = {"rope.freq_base": 10_000.0, "attention.layer_norm_rms_epsilon": 1e-5}
_KNOWN = {*_NEUTRAL, *_COUNTS, *_WIDTHS, *_NUMBERS, "attention.head_count_kv", "vocab_size"}


def read_metadata(reader: Any, source: Path) -> Metadata:
    """All keys with their values as Python objects. Raises UsageError for a model of an architecture that is not supported."""
    try:
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, TypeError) as error:
        raise UsageError(f"{source} has keys that cannot be read ({error}); fetch it again") from error
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(f"{source}: general.architecture = {architecture!r} is not supported; only {known} are")
    return metadata


def spec_from(metadata: Metadata, source: Path, *, vocab: int, tied: bool) -> ModelSpec:
    """The decoder's shape; `vocab` and `tied` follow from the tensors. Raises UsageError with every key that does not fit."""
    architecture = metadata["general.architecture"]
    prefix = f"{architecture}."
    keys = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    problems = ([] if vocab else ["token_embd.weight: absent"]) + [prefix + problem for problem in _problems(keys)]
    if not problems:
        heads = keys["attention.head_count"]
        theta, norm_eps = (_short(keys.get(name, default)) for name, default in _NUMBERS.items())
        try:
            return ModelSpec(
                family=architecture,
                vocab=vocab,
                d_model=keys["embedding_length"],
                layers=keys["block_count"],
                heads=heads,
                kv_heads=keys.get("attention.head_count_kv") or heads,
                head_dim=_head_dim(keys),
                d_ff=keys["feed_forward_length"],
                rope=RopeSpec(theta=theta),
                norm_eps=norm_eps,
                tied=tied,
                context=keys["context_length"],
                **ARCHITECTURES[architecture],
            )
        except ValueError as error:
            problems = [str(error)]
    raise UsageError("\n  ".join([f"{source} describes a model that cannot be used:", *problems]))


def _problems(keys: Metadata) -> list[str]:
    """Keys that are absent, unknown, of the wrong kind, or change the mathematics beyond what the decoder can do."""
    problems = [f"{name}: absent" for name in _COUNTS if name not in keys]
    counts = [name for name in (*_COUNTS, "attention.head_count_kv", "attention.key_length") if name in keys]
    problems += [f"{name} = {keys[name]!r}: must be a whole number above 0" for name in counts if not _is_count(keys[name])]
    numbers = [name for name in _NUMBERS if name in keys and not (isinstance(keys[name], float) and 0 < keys[name] < np.inf)]
    problems += [f"{name} = {keys[name]!r}: must be a number above 0" for name in numbers]
    for name, neutral in _NEUTRAL.items():
        if keys.get(name, neutral) != neutral:
            problems.append(f"{name} = {keys[name]!r}: not supported; only {neutral!r} is")
    for name in _WIDTHS:
        if not problems and keys.get(name, _head_dim(keys)) != _head_dim(keys):
            problems.append(f"{name} = {keys[name]!r}: not supported; only the width of a head, {_head_dim(keys)}, is")
    unknown = [name for name in keys if name not in _KNOWN]
    return problems + [f"{name} = {str(keys[name])[:60]}: unknown key that may change the mathematics; not supported" for name in unknown]


def _head_dim(keys: Metadata) -> int:
    return keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def special_ids(metadata: Metadata, source: Path) -> SpecialIds:
    """Special token ids; the end of a turn (eot) ends a completion as the end of the text (eos) does."""
    ids = {name: special_id(metadata, name, source) for name in ("bos", "eos", "eot", "padding")}
    stops = dict.fromkeys(id for id in (ids["eos"], ids["eot"]) if id is not None)
    return SpecialIds(bos=ids["bos"], eos=tuple(stops), pad=ids["padding"])


def special_id(metadata: Metadata, name: str, source: Path) -> int | None:
    """A special token's id, None where the file has none. Raises UsageError for one that is no token."""
    key = f"tokenizer.ggml.{name}_token_id"
    id, tokens = metadata.get(key), listed(metadata, "tokenizer.ggml.tokens", str, source)
    if id is not None and not (type(id) is int and 0 <= id < len(tokens)):
        raise UsageError(f"{source}: {key} = {id!r} is not one of its {len(tokens)} tokens")
    return id


def listed(metadata: Metadata, name: str, kind: type, source: Path) -> list[Any]:
    """A list that must be there, all of its members of one kind."""
    if name not in metadata:
        raise UsageError(f"{source} has no key {name}; {near_names(name, metadata)}")
    value = metadata[name]
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise UsageError(f"{source}: {name} is not a list of {kind.__name__}; fetch it again")
    return value


def _short(value: float) -> float:
    """The shortest decimal of a float32: 1e-05 for the stored 9.999999747378752e-06."""
    return float(str(np.float32(value)))
