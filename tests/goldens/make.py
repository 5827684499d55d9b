"""Makes the golden files anew: `python tests/goldens/make.py [FAMILY ...]` where torch, transformers and peft are installed.

Every model is tiny, its weights come from `tests.goldens.weights`, and the numbers are those of transformers in float32 on the CPU
with eager attention. Prompts are the first of a fixed series for which no choice hangs by a hair: neither a greedy token nor an expert.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.goldens import read
from tests.goldens.weights import bell, to_bfloat16

GREEDY_PROMPT_TOKENS = 12
GREEDY_TOKENS = 64
PROMPT_TOKENS = {"tokens": 40, "tokens_b": 9, "tokens_c": 7}
FIRST_PROMPT_TOKEN = 8
"""Tokens below it are kept for the beginning and the end of a text."""
LEAST_GREEDY_MARGIN = 5e-3
"""Least distance of the best logit from the second at each greedy token."""
LEAST_ROUTER_MARGIN = 1e-3
"""Least distance between the router's logits of the last expert chosen and the first left out, at each token and layer."""
LEAST_DISTINCT = 16
"""Distinct tokens in a greedy continuation: one that repeats itself proves little."""
SERIES = 1024
"""Choices of prompts that are tried."""
BATCH = 32
TOLERANCE = 1e-6
"""Greatest difference in a logit when transformers reads a written directory again."""

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN3 = {"head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
MIXTURE = {**QWEN3, "num_experts": 8, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": []}


def rope(theta: float, kind: str = "default", **scaling: float) -> dict[str, Any]:
    """Rotary parameters as transformers 5 names them."""
    return {"rope_theta": theta, "rope_type": kind, **scaling}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
"""At theta 20,000 and 16 dimensions a head, wavelengths are 6, 22, 75, 257, ... tokens: kept, blended and divided ones all occur."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "llama",
        {
            "head_dim": 16,
            "eos_token_id": [2, 3],
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": rope(20_000.0, "llama3", **LLAMA3),
        },
    ),
    "llama_tied": (
        "llama",
        {
            "hidden_size": 48,
            "num_attention_heads": 6,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100_000.0),
        },
    ),
    "llama_linear": ("llama", {"tie_word_embeddings": False, "rope_parameters": rope(10_000.0, "linear", factor=2.0)}),
    "mistral": ("mistral", {"rms_norm_eps": 1e-5, "sliding_window": None, "rope_parameters": rope(1_000_000.0), "head_dim": 16}),
    "mistral_window": ("mistral", {"rms_norm_eps": 1e-5, "sliding_window": 8, "rope_parameters": rope(10_000.0)}),
    "qwen2": (
        "qwen2",
        {"tie_word_embeddings": True, "rope_parameters": rope(1_000_000.0), "max_window_layers": 2, "use_sliding_window": False},
    ),
    "qwen2_window": (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "tie_word_embeddings": False,
            "rope_parameters": rope(1_000_000.0),
            "max_window_layers": 1,
            "sliding_window": 8,
            "use_sliding_window": True,
        },
    ),
    "qwen3": ("qwen3", {**QWEN3, "rope_parameters": rope(1_000_000.0), "max_window_layers": 2}),
    "qwen3_moe": ("qwen3_moe", {**MIXTURE, "num_experts_per_tok": 2, "norm_topk_prob": True, "rope_parameters": rope(1_000_000.0)}),
    "qwen3_moe_raw": ("qwen3_moe", {**MIXTURE, "num_experts_per_tok": 3, "norm_topk_prob": False, "rope_parameters": rope(10_000.0)}),
    "gemma2": (
        "gemma2",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "query_pre_attn_scalar": 12,
            "sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 4.0,
            "rope_parameters": rope(10_000.0),
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "head_dim": 16,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": [1, 5],
            "query_pre_attn_scalar": 12,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "sliding_attention": rope(10_000.0),
                "full_attention": rope(1_000_000.0, "linear", factor=4.0),
            },
        },
    ),
}
"""Model type and settings of each golden model."""


OLDER_ROPE: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 20_000.0, "rope_scaling": {**LLAMA3, "rope_type": "llama3"}},
    "llama_tied": {"rope_theta": 100_000, "rope_scaling": None},
    "llama_linear": {"rope_theta": 10_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "mistral": {"rope_theta": 1_000_000.0},
    "mistral_window": {"rope_theta": 10_000.0},
    "qwen2": {"rope_theta": 1_000_000.0},
    "qwen2_window": {"rope_theta": 1_000_000.0},
    "qwen3": {"rope_theta": 1_000_000, "rope_scaling": None},
    "qwen3_moe": {"rope_theta": 1_000_000.0, "rope_scaling": None},
    "qwen3_moe_raw": {"rope_theta": 10_000.0, "rope_scaling": None},
    "gemma2": {"rope_theta": 10_000.0},
    "gemma3": {
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        "rope_scaling": {"factor": 4.0, "rope_type": "linear"},
    },
}
"""Rotary settings in the form of transformers 4."""

OLDER_SETTINGS: dict[str, dict[str, Any]] = {
    "llama_tied": {"rope_interleaved": False, "is_llama_config": True},
    "qwen2": {"sliding_window": 8, "use_mrope": False},
    "qwen3_moe": {"max_window_layers": 2},
    "qwen3_moe_raw": {"max_window_layers": 2},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
    "gemma3": {"sliding_window_pattern": 3},
}
"""Other fields of published configurations of that time; the window of `qwen2` is one that `use_sliding_window` turns off."""


def describe(family: str) -> None:
    """Write config.json and tensors.json of `family`, both taken from what `save_pretrained` writes."""
    model_type, settings = FAMILIES[family]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**BASE, **settings}))
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        (read.ROOT / family).mkdir(exist_ok=True)
        (read.ROOT / family / "config.json").write_text((Path(directory) / "config.json").read_text())
        with safe_open(Path(directory) / "model.safetensors", "numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in shapes.items())
    (read.ROOT / family / "tensors.json").write_text("{\n" + lines + "\n}\n")


def write_older_config(family: str) -> None:
    """Write the settings of `family` in the form of transformers 4, with the fields that published checkpoints of that time have."""
    settings = read.config(family)
    gemma = settings["model_type"].startswith("gemma")
    for name in ("rope_parameters", "layer_types", "_sliding_window_pattern", "use_bidirectional_attention", "dtype"):
        settings.pop(name, None)
    settings |= {"torch_dtype": "float32", "transformers_version": "4.51.3"}
    if gemma:
        del settings["tie_word_embeddings"]
        settings["cache_implementation"] = "hybrid"
    if settings["pad_token_id"] is None:
        del settings["pad_token_id"]
    if settings.get("head_dim") == settings["hidden_size"] // settings["num_attention_heads"]:
        del settings["head_dim"]
    if "num_local_experts" in settings:
        settings["num_experts"] = settings.pop("num_local_experts")
    settings |= OLDER_ROPE[family] | OLDER_SETTINGS.get(family, {})
    path = read.ROOT / "older_configs" / f"{family}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def load(directory: Path) -> PreTrainedModel:
    """The model in `directory` as transformers reads it; every tensor must be there and be used."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    if any(info.values()):
        raise SystemExit(f"{directory}: {info}")
    return model.eval()


def logits(model: PreTrainedModel | PeftModel, tokens: np.ndarray) -> np.ndarray:
    """Logits at every position of `tokens` [t], float32 [t, v]."""
    return model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0].numpy()


def continue_greedily(model: PreTrainedModel, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most probable tokens [n, GREEDY_TOKENS] after each of `prompts` [n, t], and each one's distance from the second best."""
    text = torch.from_numpy(prompts.astype(np.int64))
    margins = []
    for _ in range(GREEDY_TOKENS):
        best = model(text, use_cache=False, logits_to_keep=1).logits[:, -1].topk(2)
        margins.append((best.values[:, 0] - best.values[:, 1]).numpy())
        text = torch.cat([text, best.indices[:, :1]], dim=1)
    return text[:, prompts.shape[1] :].numpy().astype(np.int32), np.stack(margins, axis=1)


def router_margin(model: PreTrainedModel, tokens: np.ndarray) -> float:
    """Least distance between the logits of the last expert chosen and the first left out; infinite without experts."""
    if not hasattr(model.config, "num_experts"):
        return float("inf")
    out = model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False, output_router_logits=True)
    chosen = model.config.num_experts_per_tok
    best = torch.cat(out.router_logits).topk(chosen + 1).values
    return (best[:, chosen - 1] - best[:, chosen]).min().item()


def draw_prompts(number: int) -> dict[str, np.ndarray]:
    """Choice `number` of the three prompts."""
    vocabulary = BASE["vocab_size"]
    drawn = np.random.Philox(key=number).random_raw(sum(PROMPT_TOKENS.values())) % np.uint64(vocabulary - FIRST_PROMPT_TOKEN)
    tokens = drawn.astype(np.int32) + FIRST_PROMPT_TOKEN
    ends = np.cumsum(list(PROMPT_TOKENS.values()))
    return dict(zip(PROMPT_TOKENS, np.split(tokens, ends[:-1]), strict=True))


def choose(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The first prompts of the series without a close decision, and their greedy continuation, as golden.npz keeps them."""
    ends = np.atleast_1d(model.config.eos_token_id)
    for start in range(0, SERIES, BATCH):
        choices = [draw_prompts(number) for number in range(start, start + BATCH)]
        prompts = np.stack([choice["tokens"][:GREEDY_PROMPT_TOKENS] for choice in choices])
        continuations, margins = continue_greedily(model, prompts)
        for choice, greedy, margin in zip(choices, continuations, margins.min(axis=1), strict=True):
            if margin < LEAST_GREEDY_MARGIN or np.isin(greedy, ends).any() or len(np.unique(greedy)) < LEAST_DISTINCT:
                continue
            texts = [*choice.values(), np.concatenate([choice["tokens"][:GREEDY_PROMPT_TOKENS], greedy])]
            if min(router_margin(model, text) for text in texts) >= LEAST_ROUTER_MARGIN:
                return choice | {"greedy": greedy}
    raise SystemExit(f"{model.config.model_type}: no choice of prompts among {SERIES} is clear enough")


def compute(family: str, directory: Path) -> None:
    """Write golden.npz of `family`: what transformers computes from the model in `directory`."""
    model = load(directory)
    arrays = choose(model)
    greedy, margins = continue_greedily(model, arrays["tokens"][None, :GREEDY_PROMPT_TOKENS])
    if not np.array_equal(greedy[0], arrays["greedy"]) or margins.min() < LEAST_GREEDY_MARGIN:
        raise SystemExit(f"{family}: the greedy continuation depends on the batch")
    for name in PROMPT_TOKENS:
        arrays[name.replace("tokens", "logits")] = logits(model, arrays[name])
    arrays |= {"greedy_prompt": np.int32(GREEDY_PROMPT_TOKENS), "greedy_margin": np.float32(margins.min())}
    np.savez_compressed(read.ROOT / family / "golden.npz", **arrays)


def check(family: str, *, older: bool) -> float:
    """Greatest difference between the logits kept for `family` and those of a directory written anew and read by transformers."""
    kept = read.golden(family)
    with tempfile.TemporaryDirectory() as directory:
        read.write_directory(family, Path(directory), older=older)
        model = load(Path(directory))
    pairs = ((kept.tokens, kept.logits), (kept.tokens_b, kept.logits_b), (kept.tokens_c, kept.logits_c))
    difference = max(np.abs(logits(model, tokens) - expected).max().item() for tokens, expected in pairs)
    if difference > TOLERANCE:
        raise SystemExit(f"{family}: logits differ by {difference} when read again (older config: {older})")
    return difference


def adapt() -> None:
    """Write a LoRA adapter of `llama_tied` as peft saves it, and the logits of the adapted model."""
    kept = read.golden(read.ADAPTED)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as saved:
        read.write_directory(read.ADAPTED, Path(base))
        model = get_peft_model(load(Path(base)), settings).eval()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                values = bell(name.replace(".default", ""), tuple(parameter.shape)) / np.sqrt(parameter.shape[-1])
                parameter.data.copy_(torch.from_numpy(to_bfloat16(values / 2 if "lora_B" in name else values)))
        model.peft_config["default"].base_model_name_or_path = read.ADAPTED
        model.save_pretrained(saved, save_embedding_layers=False)
        read.ADAPTER.mkdir(exist_ok=True)
        (read.ADAPTER / "adapter_model.safetensors").write_bytes((Path(saved) / "adapter_model.safetensors").read_bytes())
        described = json.loads((Path(saved) / "adapter_config.json").read_text())
        described["target_modules"].sort()  # a set, which peft writes in an order that differs from run to run
        (read.ADAPTER / "adapter_config.json").write_text(json.dumps(described, indent=2))
        adapted = logits(model, kept.tokens)
        again = logits(PeftModel.from_pretrained(load(Path(base)), str(read.ADAPTER)).eval(), kept.tokens)
    if np.abs(adapted - again).max() > TOLERANCE or np.abs(adapted - kept.logits).max() < 0.1:
        raise SystemExit("peft: the saved adapter is not the one whose logits were computed, or it changes nothing")
    np.savez_compressed(read.ADAPTER / "golden.npz", tokens=kept.tokens, logits=adapted)


@torch.no_grad()
def main(families: list[str]) -> None:
    """Make the golden files of `families` (all of them when none is named), then read each back and compare."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for family in families or read.FAMILIES:
        describe(family)
        write_older_config(family)
        with tempfile.TemporaryDirectory() as directory:
            read.write_directory(family, Path(directory))
            compute(family, Path(directory))
        differences = [check(family, older=older) for older in (False, True)]
        kept = read.golden(family)
        print(
            f"{family}: logits deviate by {kept.logits.std():.2f}, least greedy margin {kept.greedy_margin:.4f}, "
            f"{len(np.unique(kept.greedy))} distinct greedy tokens, read again within {max(differences):.1e}",
            flush=True,
        )
    if not families or read.ADAPTED in families:
        adapt()


if __name__ == "__main__":
    main(sys.argv[1:])
