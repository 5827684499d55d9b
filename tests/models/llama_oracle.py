"""A Llama decoder from its definition, one token at a time in float64 numpy: slow, plain, and sharing no code with the product.

It reads tensors by their names and layouts in Hugging Face files (a linear layer is y = W x, heads before their width), so the
parameter declarations are part of what is tested. Weights are an argument of each step: keys and values of earlier tokens stay
those of the weights that made them.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.models.parameters import Params, declarations, leaf
from slipstream.models.spec import ModelSpec

Tensors = Mapping[str, np.ndarray]


def file_tensors(params: Params, spec: ModelSpec) -> dict[str, np.ndarray]:
    """All weights under their file names, float64."""
    found = {}
    for declaration in declarations(spec):
        array = np.asarray(leaf(params, declaration.path), np.float64)
        for index, name in declaration.tensors(spec):
            found[name] = declaration.to_file(array[index], spec)
    return found


class LlamaOracle:
    """One sequence in progress."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._keys: list[list[np.ndarray]] = [[] for _ in range(spec.layers)]
        self._values: list[list[np.ndarray]] = [[] for _ in range(spec.layers)]

    def step(self, tensors: Tensors, token: int) -> np.ndarray:
        """Feed one token; the logits [v] of the next."""
        spec = self._spec
        x = tensors["model.embed_tokens.weight"][token]
        for layer in range(spec.layers):
            name = f"model.layers.{layer}."
            x = x + self._attention(tensors, layer, _norm(x, tensors[name + "input_layernorm.weight"], spec.norm_eps))
            normed = _norm(x, tensors[name + "post_attention_layernorm.weight"], spec.norm_eps)
            gate = tensors[name + "mlp.gate_proj.weight"] @ normed
            up = tensors[name + "mlp.up_proj.weight"] @ normed
            x = x + tensors[name + "mlp.down_proj.weight"] @ (gate / (1.0 + np.exp(-gate)) * up)
        output = tensors["model.embed_tokens.weight" if spec.tied else "lm_head.weight"]
        return output @ _norm(x, tensors["model.norm.weight"], spec.norm_eps)

    def _attention(self, tensors: Tensors, layer: int, x: np.ndarray) -> np.ndarray:
        spec, name, position = self._spec, f"model.layers.{layer}.self_attn.", len(self._keys[layer])
        q = (tensors[name + "q_proj.weight"] @ x).reshape(spec.heads, spec.head_dim)
        k = (tensors[name + "k_proj.weight"] @ x).reshape(spec.kv_heads, spec.head_dim)
        v = (tensors[name + "v_proj.weight"] @ x).reshape(spec.kv_heads, spec.head_dim)
        self._keys[layer].append(np.array([_rope(head, position, spec.rope.theta) for head in k]))
        self._values[layer].append(v)
        mixed = []
        for head in range(spec.heads):
            query, group = _rope(q[head], position, spec.rope.theta), head // (spec.heads // spec.kv_heads)
            scores = np.array([query @ keys[group] / np.sqrt(spec.head_dim) for keys in self._keys[layer]])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed.append(sum(weight * values[group] for weight, values in zip(weights, self._values[layer], strict=True)))
        return tensors[name + "o_proj.weight"] @ np.concatenate(mixed)


def oracle_logits(tensors: Tensors, spec: ModelSpec, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Logits [t, v] after each of `tokens`, from the start of a sequence."""
    oracle = LlamaOracle(spec)
    return np.array([oracle.step(tensors, int(token)) for token in tokens])


def log_softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(logits / temperature) over the last axis."""
    scaled = np.asarray(logits, np.float64) / temperature
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def _rope(head: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Turn the pairs (i, i + k/2) by position * theta^(-2i/k)."""
    width = len(head)
    half, turned = width // 2, np.empty(width)
    for i in range(half):
        angle = position * theta ** (-2.0 * i / width)
        turned[i] = head[i] * np.cos(angle) - head[i + half] * np.sin(angle)
        turned[i + half] = head[i + half] * np.cos(angle) + head[i] * np.sin(angle)
    return turned
