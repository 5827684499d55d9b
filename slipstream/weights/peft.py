"""Low-rank adapters in the files of the package peft: adapter_config.json and adapter_model.safetensors (huggingface.co/docs/peft).

An adapter of `model.layers.0.self_attn.q_proj.weight` is two tensors, `base_model.model.model.layers.0.self_attn.q_proj` with
`.lora_A.weight` [rank, inputs] and with `.lora_B.weight` [outputs, rank]. No base weights are read here. Called by whoever starts
from an adapter or exports one.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from slipstream.core.errors import Problem, RunFailed, UsageError
from slipstream.models.families.fields import Fields
from slipstream.models.lora import TARGETS, Adapters, LayerAdapters, LoraSpec, Target, adapted
from slipstream.models.parameters import declarations
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Adapter
from slipstream.telemetry.atomic import atomic_write_bytes
from slipstream.weights.json_object import read_json
from slipstream.weights.safetensors_writer import write_safetensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_FLOATS = ("F32", "F16", "BF16", "F64")
# initialisers that leave the base as it is; pissa, olora, corda and lora_ga adapters belong to a base changed by them
_INITIALISERS = (True, False, "gaussian", "eva", "orthogonal")
_ALL_LINEAR = "all-linear"
_INERT = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type", "runtime_config"),
        *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),  # of training, and of fresh adapters
        *("megatron_core", "qalora_group_size", "layers_pattern"),  # of variants that are refused by their own fields
    )
)


def read_adapters(directory: Path, spec: ModelSpec) -> tuple[LoraSpec, Adapters]:
    """The adapters of a directory that peft wrote, float32 and stacked, for a decoder `spec`.

    Rank-stabilised ones (use_rslora: alpha / sqrt(rank), Kalajdzievski 2023, arXiv 2312.03732) read as the alpha that gives the
    same scale. Raises UsageError with every field that cannot be applied, or with every tensor that is missing, extra, of the
    wrong shape or of a type that is not a float.
    """
    lora = _lora_spec(directory / CONFIG, spec)
    path = directory / TENSORS
    if not path.is_file():
        other = "; *.bin files are not read" if list(directory.glob("*.bin")) else ""
        raise UsageError(f"adapter directory {directory} has no {TENSORS}{other}")
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            shapes = {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
            _refuse(path, "does not hold the adapters that its configuration declares", _differences(shapes, spec, lora))
            layers = {target.name: _stacked(file, target, spec, lora) for target in adapted(spec, lora)}
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a whole safetensors file ({error}); fetch or write it again") from error
    return lora, Adapters(layers=LayerAdapters(**layers))


def write_adapters(directory: Path, spec: ModelSpec, lora: LoraSpec, adapters: Adapters, base_model: str) -> None:
    """Write stacked adapters as peft does, in float32; an adapter that was there is replaced. `base_model` is the base's name or path.

    Raises ValueError where `adapters` are not scaled by `lora`'s alpha / rank, RunFailed where the disk refuses.
    """
    found = {target.name: getattr(adapters.layers, target.name) for target in adapted(spec, lora)}
    wrong = [name for name, adapter in found.items() if not np.allclose(adapter.scale, lora.alpha / lora.rank, rtol=1e-6)]
    if wrong:
        raise ValueError(f"adapters of {', '.join(wrong)} are not scaled by alpha / rank = {lora.alpha / lora.rank}")
    tensors = {name: tensor for target in adapted(spec, lora) for name, tensor in _unstacked(target, spec, found[target.name]).items()}
    staged = directory / f".{TENSORS}.{os.getpid()}.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_safetensors(staged, {name: tensor.shape for name, tensor in tensors.items()}, "float32", tensors.__getitem__)
        (directory / CONFIG).unlink(missing_ok=True)  # without it the directory is no adapter until it is whole again
        staged.replace(directory / TENSORS)
        atomic_write_bytes(directory / CONFIG, (json.dumps(_config(spec, lora, base_model), indent=2) + "\n").encode())
    except OSError as error:
        raise RunFailed(f"the adapters cannot be written to {directory}: {error}") from error
    finally:
        if directory.is_dir():
            staged.unlink(missing_ok=True)


def _lora_spec(path: Path, spec: ModelSpec) -> LoraSpec:
    fields = Fields(read_json(path), {})
    if str(fields.value("peft_type")).upper() != "LORA":
        fields.bad("peft_type", "not supported; only LORA is")
    for field in ("use_dora", "fan_in_fan_out", "lora_bias"):
        fields.only(field, False)
    fields.only("bias", "none")
    if fields.value("init_lora_weights") not in (None, *_INITIALISERS):
        fields.bad("init_lora_weights", "belongs to a base changed by it; have peft convert it to a plain adapter when saving")
    for field in ("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "exclude_modules"):
        if fields.value(field):
            fields.bad(field, "not supported; all layers have adapters of the same modules, rank and alpha, and nothing else is trained")
    rank, alpha, stabilised = fields.whole("r"), fields.number("lora_alpha"), fields.flag("use_rslora")
    targets = _targets(fields, spec)
    fields.refuse_unread(_INERT)
    _refuse(path, "describes adapters that cannot be applied", fields.problems)
    return LoraSpec(rank=rank, alpha=alpha * math.sqrt(rank) if stabilised else alpha, targets=targets)


def _targets(fields: Fields, spec: ModelSpec) -> tuple[str, ...]:
    """Our names of the target modules, which are given by the last parts of their names, by a pattern of whole names, or all."""
    value, modules = fields.value("target_modules"), _modules(spec)
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        matched = {entry: {name for name, module in modules.items() if f".{module}".endswith(f".{entry}")} for entry in value}
        strangers = sorted(entry for entry, names in matched.items() if not names)
        if strangers:
            fields.bad(
                "target_modules", f"no adapters for {', '.join(strangers)}; only {', '.join(sorted(set(_last(modules))))} can have them"
            )
            return ()
        targets = tuple(name for name in TARGETS if any(name in names for names in matched.values()))
    elif isinstance(value, str) and value:
        try:
            targets = tuple(name for name, module in modules.items() if value == _ALL_LINEAR or re.fullmatch(value, module))
        except re.error as error:
            fields.bad("target_modules", f"not a pattern of module names: {error}")
            return ()
    else:
        targets = ()
    if not targets:
        fields.bad("target_modules", "must be a list of modules of a layer, a pattern of their names, or all-linear")
    elif spec.experts and set(targets) & {"gate", "up", "down"}:
        fields.bad("target_modules", "matrices of experts have no adapters; only those of attention have")
    return targets


def _modules(spec: ModelSpec) -> dict[str, str]:
    """The name that a module has in the first layer (of experts: the first), by our name of its matrix."""
    files = {declaration.path[-1]: declaration.file for declaration in declarations(spec)}
    return {name: files[name].format(layer=0, expert=0).removesuffix(".weight") for name in TARGETS}


def _last(modules: Mapping[str, str]) -> list[str]:
    return [module.rsplit(".", 1)[1] for module in modules.values()]


def _module(target: Target, layer: int) -> str:
    return target.declaration.file.format(layer=layer).removesuffix(".weight")


def _file_shapes(target: Target, spec: ModelSpec, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of lora_A [r, i] and lora_B [o, r]."""
    outputs, inputs = target.declaration.file_shape(spec)
    return (rank, inputs), (outputs, rank)


def _differences(shapes: Mapping[str, tuple[tuple[int, ...], str]], spec: ModelSpec, lora: LoraSpec) -> list[str]:
    wanted = {}
    for target in adapted(spec, lora):
        for layer in range(spec.layers):
            name = _PREFIX + _module(target, layer)
            wanted[name + _DOWN], wanted[name + _UP] = _file_shapes(target, spec, lora.rank)
    problems = []
    for name, shape in wanted.items():
        if name not in shapes:
            problems.append(f"{name}: missing; shape {list(shape)} expected")
        elif shapes[name][0] != shape:
            problems.append(f"{name}: shape {list(shapes[name][0])}; {list(shape)} expected")
        elif shapes[name][1] not in _FLOATS:
            problems.append(f"{name}: type {shapes[name][1]}; one of {', '.join(_FLOATS)} expected")
    extra = sorted(set(shapes) - set(wanted))
    return problems + [f"{name}: extra, shape {list(shapes[name][0])}; no such tensor is expected" for name in extra]


def _stacked(file: Any, target: Target, spec: ModelSpec, lora: LoraSpec) -> Adapter:
    down_shape, up_shape = target.shapes(spec, lora.rank)

    def stack(ending: str, shape: tuple[int, ...]) -> jax.Array:
        tensors = [file.get_tensor(_PREFIX + _module(target, layer) + ending).astype(np.float32).T for layer in range(spec.layers)]
        return jnp.asarray(np.stack(tensors).reshape(shape))

    return Adapter(down=stack(_DOWN, down_shape), up=stack(_UP, up_shape), scale=lora.alpha / lora.rank)


def _unstacked(target: Target, spec: ModelSpec, adapter: Adapter) -> dict[str, np.ndarray]:
    """The inverse of `_stacked`, by name."""
    down, up = np.asarray(adapter.down, np.float32), np.asarray(adapter.up, np.float32)
    rank = up.shape[1]
    found = {}
    for layer in range(spec.layers):
        name = _PREFIX + _module(target, layer)
        found[name + _DOWN] = np.ascontiguousarray(down[layer].reshape(-1, rank).T)
        found[name + _UP] = np.ascontiguousarray(up[layer].reshape(rank, -1).T)
    return found


def _config(spec: ModelSpec, lora: LoraSpec, base_model: str) -> dict[str, Any]:
    """adapter_config.json, in the fields that every version of peft knows."""
    modules = _modules(spec)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(_last({name: modules[name] for name in lora.targets})),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }


def _refuse(path: Path, what: str, problems: list[Problem] | list[str]) -> None:
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(f"{path} {what}, {len(problems)} problem{'s' if len(problems) > 1 else ''}:\n{lines}")
