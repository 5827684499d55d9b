"""A checkpoint of a run written as a model directory in Hugging Face layout. Builds no engine and no learner; called by the command line.

The weights go from file to file, a tensor at a time. What else a model directory has comes from where the run got it: the
directory of a pretrained model, or the task's alphabet.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from slipstream.config.load import parse_config
from slipstream.config.schema import PretrainedModel, RunConfig
from slipstream.core.errors import UsageError
from slipstream.envs.build import build_task
from slipstream.models.families import FAMILIES
from slipstream.models.lora import LoraSpec, adapted
from slipstream.models.parameters import count, declarations, from_leaves
from slipstream.models.spec import ModelSpec
from slipstream.runtime.policy import scratch_spec
from slipstream.runtime.pretrained import model_directory, read_pretrained
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.checkpoint import Checkpoint, checkpoint_of, newest_checkpoint, steps_on_disk
from slipstream.weights.files import read_texts
from slipstream.weights.model_writer import MAX_SHARD_BYTES, refuse_filled, write_tensors
from slipstream.weights.special_ids import SpecialIds, read_special_ids

PARAMS = "params.safetensors"  # of a checkpoint, as the learner saves it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    step: int  # of the checkpoint
    architecture: str  # as in config.json
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """All of a model directory but its weights."""

    spec: ModelSpec
    special: SpecialIds
    texts: Mapping[str, bytes]  # tokenizer files by name


def export(run: Path, out: Path, *, step: int | None = None, dtype: str = "bfloat16", max_shard_bytes: int = MAX_SHARD_BYTES) -> Exported:
    """Write the checkpoint of `step` (None: the newest) of the run directory `run` to `out`, which must be absent or empty.

    Raises UsageError where there is no such run or step, the run's pretrained model is gone or another one now, or `out` has
    files in it; RunFailed where the disk refuses.
    """
    refuse_filled(out)
    directory = RunDirectory.open(run)
    config = read_run_config(directory)
    checkpoint = find_checkpoint(directory.checkpoints, step)
    source = config.model.source
    model = _pretrained(source) if isinstance(source, PretrainedModel) else _scratch(config)
    _write(checkpoint.path / PARAMS, model, _lora(config), out, dtype, max_shard_bytes)
    return Exported(step=checkpoint.step, architecture=FAMILIES[model.spec.family].architecture, parameters=count(model.spec))


def read_run_config(directory: RunDirectory) -> RunConfig:
    """The configuration of a run. Raises UsageError, or ConfigError with every problem, when it cannot be used."""
    try:
        return parse_config(directory.config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{directory.config} cannot be read: {error}") from error


def find_checkpoint(root: Path, step: int | None) -> Checkpoint:
    """The whole checkpoint of `step` (None: the newest) under `root`. Raises UsageError, naming those there are, where there is none."""
    there = steps_on_disk(root)
    names = ", ".join(map(str, there)) or "none"
    if step is not None and step not in there:
        raise UsageError(f"{root} has no checkpoint of step {step}; there are: {names}")
    found = newest_checkpoint(root) if step is None else checkpoint_of(root, step)
    if found is None:
        which = "no whole checkpoint" if step is None else f"a damaged checkpoint of step {step}"
        raise UsageError(f"{root} has {which}; there are: {names}")
    return found


def _pretrained(source: PretrainedModel) -> _Model:
    directory = model_directory(source)
    spec, _ = read_pretrained(directory)
    return _Model(spec=spec, special=read_special_ids(directory), texts=read_texts(directory))


def _scratch(config: RunConfig) -> _Model:
    source, tokenizer = config.model.source, build_task(config).tokenizer
    assert not isinstance(source, PretrainedModel)
    spec = scratch_spec(config, source, tokenizer)
    return _Model(spec=spec, special=SpecialIds(bos=None, eos=tokenizer.stop_ids, pad=None), texts=_tokenizer_texts(tokenizer, spec))


def _tokenizer_texts(tokenizer: Tokenizer, spec: ModelSpec) -> dict[str, bytes]:
    """The files of a tokenizer that was made, not read."""
    stop = tokenizer.backend.id_to_token(tokenizer.stop_ids[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": stop, "model_max_length": spec.context}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return read_texts(Path(folder)) | {"tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode()}


def _lora(config: RunConfig) -> LoraSpec | None:
    lora = config.model.lora
    return LoraSpec(rank=lora.rank, alpha=lora.alpha, targets=lora.targets) if lora.rank else None


def _write(path: Path, model: _Model, lora: LoraSpec | None, out: Path, dtype: str, max_shard_bytes: int) -> None:
    """The tensors of a checkpoint, from under the names of their places in the tree to under those of Hugging Face.

    Adapters are added to their matrices on the way.
    """
    spec = model.spec
    places = {name: (item, index) for item in declarations(spec) for index, name in item.tensors(spec)}
    stored, factors = _stored_names(spec, lora)
    try:
        with safe_open(path, framework="numpy") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping
            wanted = {stored[item.path]: item.shape(spec) for item in declarations(spec)}
            wanted |= {name: shape for pair in factors.values() for name, shape in pair}
            if found != wanted:
                names = ", ".join(sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)))
                raise UsageError(f"{path} is not of the model that the run's configuration names now; they differ in {names}")

            def read(name: str) -> np.ndarray:
                item, index = places[name]
                part = file.get_slice(stored[item.path])[tuple(slice(place, place + 1) for place in index)]
                if lora and item.path in factors:
                    low, high = (file.get_slice(factor)[index[0] : index[0] + 1] for factor, _ in factors[item.path])
                    part = part + (lora.alpha / lora.rank) * (low.reshape(-1, lora.rank) @ high.reshape(lora.rank, -1)).reshape(part.shape)
                return item.to_file(part.reshape(part.shape[len(index) :]), spec)

            write_tensors(out, spec, read, special=model.special, dtype=dtype, texts=model.texts, max_shard_bytes=max_shard_bytes)
    except (SafetensorError, FileNotFoundError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


_Factor = tuple[str, tuple[int, ...]]  # name and shape in a checkpoint's file
_Path = tuple[str, ...]


def _stored_names(spec: ModelSpec, lora: LoraSpec | None) -> tuple[dict[_Path, str], dict[_Path, tuple[_Factor, _Factor]]]:
    """The name of each declared path in a checkpoint's file, its place in the tree as `train.arrays` writes it; and of its adapter."""
    tree = from_leaves({item.path: jax.ShapeDtypeStruct(item.shape(spec), np.float32) for item in declarations(spec)})
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    base = {tuple(str(getattr(key, "name", key)) for key in place): jax.tree_util.keystr(place) for place, _ in leaves}
    if lora is None:
        return base, {}
    factors: dict[_Path, tuple[_Factor, _Factor]] = {}
    for target in adapted(spec, lora):
        down, up = target.shapes(spec, lora.rank)
        place = f".adapters.layers.{target.name}"
        factors[target.declaration.path] = ((f"{place}.down", down), (f"{place}.up", up))
    return {path: f".base{name}" for path, name in base.items()}, factors
