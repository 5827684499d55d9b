"""Writes a llama GGUF file of a few kilobytes: known weights, a byte-level tokenizer with three merges, a chat template."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import pre_tokenizers

from slipstream.models.parameters import declarations
from slipstream.models.spec import ModelSpec, RopeSpec

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "Ġ he"]
TOKENS = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll", "Ġhe"]
TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message.role }}{% endfor %}"
SPEC = ModelSpec(
    vocab=len(TOKENS),
    d_model=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    d_ff=64,
    rope=RopeSpec(theta=1e5),
    norm_eps=1e-5,
    tied=True,
    context=128,
)
TYPES = {"attn_q": GGMLQuantizationType.F16, "ffn_up": GGMLQuantizationType.Q8_0, "ffn_down": GGMLQuantizationType.Q4_1}  # the rest F32

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_tensors(spec: ModelSpec = SPEC) -> dict[str, np.ndarray]:
    """Weights by Hugging Face name, float32."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=declaration.file_shape(spec)).astype(np.float32)
        for declaration in declarations(spec)
        for _, name in declaration.tensors(spec)
    }


def permuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of GGUF, spelled out: inside a head, row j goes to 2j and row j + width/2 to 2j + 1."""
    result, width = np.empty_like(tensor), len(tensor) // heads
    for head in range(heads):
        for j in range(width // 2):
            result[head * width + 2 * j] = tensor[head * width + j]
            result[head * width + 2 * j + 1] = tensor[head * width + j + width // 2]
    return result


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    spec: ModelSpec = SPEC,
    architecture: str = "llama",
    pre: str = "smollm",
    more: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:
    """A GGUF file of `tensors` (Hugging Face names) with `spec`'s keys; `more` may add to it."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.d_model)
    writer.add_feed_forward_length(spec.d_ff)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_key_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in tensors.items():
        _add(writer, name, tensor, spec, permute=architecture == "llama")
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor."""
    for file_name, other in _NAMES.items():
        name = name.replace(file_name, other)
    return name


def _add(writer: GGUFWriter, name: str, tensor: np.ndarray, spec: ModelSpec, permute: bool) -> None:
    if permute and name.endswith("q_proj.weight"):
        tensor = permuted(tensor, spec.heads)
    if permute and name.endswith("k_proj.weight"):
        tensor = permuted(tensor, spec.kv_heads)
    name = gguf_name(name)
    type = TYPES.get(name.split(".")[-2], GGMLQuantizationType.F32) if name.endswith("weight") else GGMLQuantizationType.F32
    if type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        writer.add_tensor(name, tensor.astype(np.float16) if type == GGMLQuantizationType.F16 else tensor)
    else:
        writer.add_tensor(name, quantize(tensor, type), raw_dtype=type)
