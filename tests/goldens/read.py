"""The golden files as tests read them, and a golden model written as a Hugging Face directory. Numpy and safetensors only."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.goldens.weights import tensor

ROOT = Path(__file__).parent
FAMILIES = (
    "llama",
    "llama_tied",
    "llama_linear",
    "mistral",
    "mistral_window",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_raw",
    "gemma2",
    "gemma3",
)
"""Names of the golden models; each is a directory beside this file."""
ADAPTED = "llama_tied"
"""The model that the golden LoRA adapter is of."""
ADAPTER = ROOT / "peft"
"""adapter_config.json and adapter_model.safetensors as peft saves them, and the adapted model's `tokens` and `logits` in golden.npz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What transformers computes for one tiny model, in float32 with eager attention."""

    config: dict[str, Any]
    """config.json as transformers writes it."""
    tensors: dict[str, tuple[int, ...]]
    """Shape of every tensor in model.safetensors, by name."""
    tokens: np.ndarray
    """A prompt, int32 [t]."""
    logits: np.ndarray
    """Logits at every position of `tokens`, float32 [t, v]."""
    tokens_b: np.ndarray
    """A second, short prompt, int32 [u]."""
    logits_b: np.ndarray
    """Logits at every position of `tokens_b`, float32 [u, v]."""
    tokens_c: np.ndarray
    """A third, short prompt, int32 [w]."""
    logits_c: np.ndarray
    """Logits at every position of `tokens_c`, float32 [w, v]."""
    greedy: np.ndarray
    """The most probable continuation of the first `greedy_prompt` of `tokens`, int32 [64]; no token in it ends a text."""
    greedy_prompt: int
    """Number of tokens that `greedy` continues."""
    greedy_margin: float
    """The least distance between the best and the second logit along `greedy`."""


def golden(family: str) -> Golden:
    """The golden files of `family`."""
    with np.load(ROOT / family / "golden.npz") as arrays:
        values = {name: arrays[name] for name in arrays.files}
    for name in ("greedy_prompt", "greedy_margin"):
        values[name] = values[name].item()
    return Golden(config=config(family), tensors=tensors(family), **values)


def config(family: str) -> dict[str, Any]:
    """config.json of `family` as transformers writes it."""
    return json.loads((ROOT / family / "config.json").read_text())


def older_config(family: str) -> dict[str, Any]:
    """The same model's config.json as transformers 4 wrote it."""
    return json.loads((ROOT / "older_configs" / f"{family}.json").read_text())


def tensors(family: str) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that transformers writes to model.safetensors of `family`, by name."""
    return {name: tuple(shape) for name, shape in json.loads((ROOT / family / "tensors.json").read_text()).items()}


def weights(family: str) -> dict[str, np.ndarray]:
    """Every tensor of `family`, float32 (each value exact in bfloat16), by its name in model.safetensors."""
    gemma = config(family)["model_type"].startswith("gemma")
    return {name: tensor(name, shape, gemma=gemma) for name, shape in tensors(family).items()}


def write_directory(family: str, path: Path, *, older: bool = False) -> None:
    """Write the model of `family` to the directory `path` as Hugging Face keeps it; `older`: config.json as transformers 4 wrote it."""
    path.mkdir(parents=True, exist_ok=True)
    settings = older_config(family) if older else config(family)
    (path / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    generation = {"bos_token_id": settings["bos_token_id"], "eos_token_id": settings["eos_token_id"]}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(weights(family), path / "model.safetensors", metadata={"format": "pt"})
