"""Parameters: each declared once (axes, initialiser, name and axes in files); everything else follows from the declaration.

Initialisation, parameter counts, the mapping to Hugging Face files and shape checks all walk `declarations(spec)`. In
memory, homogeneous layers are stacked on axis 0 of one frozen dataclass; an engine that runs layers unrolled takes them
apart once with `unstack`.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.rng import key_words
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Weight


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParams:
    """One layer, or all layers with a leading `layer` axis L. None where the family has no such parameter."""

    attention_norm: jax.Array  # [d]
    q: Weight  # [d, h, k]
    k: Weight  # [d, g, k]
    v: Weight  # [d, g, k]
    o: Weight  # [h, k, d]
    q_bias: jax.Array | None = None  # [h, k]
    k_bias: jax.Array | None = None  # [g, k]
    v_bias: jax.Array | None = None  # [g, k]
    q_norm: jax.Array | None = None  # [k]
    k_norm: jax.Array | None = None  # [k]
    attention_post_norm: jax.Array | None = None  # [d]
    mlp_norm: jax.Array  # [d]
    router: jax.Array | None = None  # [d, e]
    gate: Weight  # [d, f], or [e, d, f] of experts
    up: Weight  # [d, f], or [e, d, f]
    down: Weight  # [f, d], or [e, f, d]
    mlp_post_norm: jax.Array | None = None  # [d]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The whole decoder."""

    embed: jax.Array  # [v, d]
    layers: LayerParams | tuple[LayerParams, ...]  # stacked, or one a layer after `unstack`
    final_norm: jax.Array  # [d]
    head: Weight | None  # [d, v]; None when tied to the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All there is to say about one parameter."""

    path: tuple[str, ...]  # attribute path in Params
    axes: tuple[str, ...]  # logical axes in memory
    init: Literal["normal", "ones", "zeros"]
    fan_in: tuple[str, ...]  # axes summed over when applied; the normal's deviation is 1/sqrt of their product. Empty: no matrix
    file: str  # name in safetensors files; {layer} and {expert} where there is one tensor each
    file_axes: tuple[tuple[str, ...], ...]  # axes in the file; several in one tuple are flattened together

    @property
    def stack(self) -> tuple[str, ...]:
        """Leading axes of memory that are spread over several tensors in files."""
        return tuple(axis for axis in self.axes if f"{{{axis}}}" in self.file)

    def shape(self, spec: ModelSpec) -> tuple[int, ...]:
        """Shape in memory, stacked axes included."""
        return tuple(spec.axis_size(axis) for axis in self.axes)

    def file_shape(self, spec: ModelSpec) -> tuple[int, ...]:
        """Shape of one tensor in the file."""
        return tuple(math.prod(spec.axis_size(axis) for axis in group) for group in self.file_axes)

    def tensors(self, spec: ModelSpec) -> list[tuple[tuple[int, ...], str]]:
        """Each tensor in files: its index along the stacked axes (empty where there are none) and its name."""
        indices = itertools.product(*(range(spec.axis_size(axis)) for axis in self.stack))
        return [(index, self.file.format(**dict(zip(self.stack, index, strict=True)))) for index in indices]

    def from_file(self, tensor: np.ndarray, spec: ModelSpec) -> np.ndarray:
        """One tensor of the file, rearranged to the axes of memory (without the stacked ones)."""
        flat = [axis for group in self.file_axes for axis in group]
        unflattened = tensor.reshape([spec.axis_size(axis) for axis in flat])
        return unflattened.transpose([flat.index(axis) for axis in self._tensor_axes()])

    def to_file(self, tensor: np.ndarray, spec: ModelSpec) -> np.ndarray:
        """The inverse of `from_file`."""
        flat = [axis for group in self.file_axes for axis in group]
        axes = self._tensor_axes()
        return np.ascontiguousarray(tensor.transpose([axes.index(axis) for axis in flat])).reshape(self.file_shape(spec))

    def _tensor_axes(self) -> tuple[str, ...]:
        return self.axes[len(self.stack) :]


def declarations(spec: ModelSpec) -> list[Declaration]:
    """Every parameter of the decoder, in a fixed order."""
    found = [_declare("embed", "vocab embed", "embed", "model.embed_tokens.weight", "vocab embed")]
    found += _attention_declarations(spec) + _mlp_declarations(spec)
    found.append(_norm(spec, "final_norm", "model.norm.weight", ""))
    if not spec.tied:
        found.append(_declare("head", "embed vocab", "embed", "lm_head.weight", "vocab embed"))
    return found


_LAYER = "model.layers.{layer}."


def _attention_declarations(spec: ModelSpec) -> list[Declaration]:
    block = _LAYER + "self_attn."
    found = [
        _norm(spec, "layers.attention_norm", _LAYER + "input_layernorm.weight"),
        _declare("layers.q", "layer embed heads head_dim", "embed", block + "q_proj.weight", "heads*head_dim embed"),
        _declare("layers.k", "layer embed kv_heads head_dim", "embed", block + "k_proj.weight", "kv_heads*head_dim embed"),
        _declare("layers.v", "layer embed kv_heads head_dim", "embed", block + "v_proj.weight", "kv_heads*head_dim embed"),
        _declare("layers.o", "layer heads head_dim embed", "heads head_dim", block + "o_proj.weight", "embed heads*head_dim"),
    ]
    if spec.qkv_bias:
        found += [
            _declare("layers.q_bias", "layer heads head_dim", "", block + "q_proj.bias", "heads*head_dim", "zeros"),
            _declare("layers.k_bias", "layer kv_heads head_dim", "", block + "k_proj.bias", "kv_heads*head_dim", "zeros"),
            _declare("layers.v_bias", "layer kv_heads head_dim", "", block + "v_proj.bias", "kv_heads*head_dim", "zeros"),
        ]
    if spec.qk_norm:
        found += [_norm(spec, f"layers.{name}_norm", f"{block}{name}_norm.weight", axis="head_dim") for name in ("q", "k")]
    if spec.sandwich_norms:
        found.append(_norm(spec, "layers.attention_post_norm", _LAYER + "post_attention_layernorm.weight"))
    return found


def _mlp_declarations(spec: ModelSpec) -> list[Declaration]:
    before = "pre_feedforward_layernorm" if spec.sandwich_norms else "post_attention_layernorm"
    found = [_norm(spec, "layers.mlp_norm", f"{_LAYER}{before}.weight")]
    if spec.experts:
        stack, inner, block = "layer expert", "expert_mlp", _LAYER + "mlp.experts.{expert}."
        found.append(_declare("layers.router", "layer embed expert", "embed", _LAYER + "mlp.gate.weight", "expert embed"))
    else:
        stack, inner, block = "layer", "mlp", _LAYER + "mlp."
    found += [
        _declare("layers.gate", f"{stack} embed {inner}", "embed", block + "gate_proj.weight", f"{inner} embed"),
        _declare("layers.up", f"{stack} embed {inner}", "embed", block + "up_proj.weight", f"{inner} embed"),
        _declare("layers.down", f"{stack} {inner} embed", inner, block + "down_proj.weight", f"embed {inner}"),
    ]
    if spec.sandwich_norms:
        found.append(_norm(spec, "layers.mlp_post_norm", _LAYER + "post_feedforward_layernorm.weight"))
    return found


def _norm(spec: ModelSpec, path: str, file: str, stack: str = "layer ", axis: str = "embed") -> Declaration:
    return _declare(path, stack + axis, "", file, axis, "zeros" if spec.norm_plus_one else "ones")


def _declare(
    path: str, axes: str, fan_in: str, file: str, file_axes: str, init: Literal["normal", "ones", "zeros"] = "normal"
) -> Declaration:
    return Declaration(
        path=tuple(path.split(".")),
        axes=tuple(axes.split()),
        init=init,
        fan_in=tuple(fan_in.split()),
        file=file,
        file_axes=tuple(tuple(group.split("*")) for group in file_axes.split()),
    )


def count(spec: ModelSpec) -> int:
    """Number of parameters."""
    return sum(math.prod(declaration.shape(spec)) for declaration in declarations(spec))


def from_leaves(leaves: Mapping[tuple[str, ...], Any]) -> Params:
    """The tree with the given leaf at each declared path."""
    layers = {path[1]: leaf for path, leaf in leaves.items() if path[0] == "layers"}
    return Params(embed=leaves[("embed",)], layers=LayerParams(**layers), final_norm=leaves[("final_norm",)], head=leaves.get(("head",)))


def leaf(params: Params, path: tuple[str, ...]) -> jax.Array:
    """The leaf at a declared path of a stacked tree."""
    node: Any = params
    for name in path:
        node = getattr(node, name)
    return node


def fresh_matrix(shape: tuple[int, ...], inputs: int, seed: int, *purpose: str) -> jax.Array:
    """Normal numbers, float32, with deviation 1/sqrt(inputs): a function of shape, seed and purpose alone."""
    words = jnp.array(key_words(seed, *purpose), jnp.uint32)
    return inputs**-0.5 * jax.random.normal(jax.random.wrap_key_data(words), shape)


def initialise(spec: ModelSpec, seed: int, dtype: jnp.dtype | type = jnp.float32) -> Params:
    """Fresh weights: norms and biases that change nothing, else normal with deviation 1/sqrt(fan in), keyed by the parameter's name."""

    def draw(declaration: Declaration) -> jax.Array:
        shape = declaration.shape(spec)
        if declaration.init != "normal":
            return jnp.full(shape, declaration.init == "ones", dtype)
        inputs = math.prod(spec.axis_size(axis) for axis in declaration.fan_in)
        return fresh_matrix(shape, inputs, seed, "init", ".".join(declaration.path)).astype(dtype)

    return from_leaves({declaration.path: draw(declaration) for declaration in declarations(spec)})


def unstack(params: Params) -> Params:
    """The same weights with one LayerParams a layer, as unrolled execution wants them (slicing inside jit copies each step)."""
    layers = params.layers
    assert isinstance(layers, LayerParams)
    depth = layers.attention_norm.shape[0]
    split = tuple(jax.tree.map(lambda stacked, layer=layer: stacked[layer], layers) for layer in range(depth))
    return Params(embed=params.embed, layers=split, final_norm=params.final_norm, head=params.head)


def output_matrix(params: Params) -> tuple[Weight, bool]:
    """The output projection [d, v], and whether it lies turned, as [v, d]: so does an embedding that serves as one."""
    return (params.embed, True) if params.head is None else (params.head, False)
