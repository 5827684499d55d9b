"""Parameters: each declared once (axes, initialiser, name and axes in files); everything else follows from the declaration.

Initialisation, parameter counts, the mapping to Hugging Face files and shape checks all walk `declarations(spec)`. In
memory, homogeneous layers are stacked on axis 0 of one frozen dataclass; an engine that runs layers unrolled takes them
apart once with `unstack`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.rng import key_words
from slipstream.models.spec import ModelSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParams:
    """One layer, or all layers with a leading `layer` axis L."""

    attention_norm: jax.Array  # [d]
    q: jax.Array  # [d, h, k]
    k: jax.Array  # [d, g, k]
    v: jax.Array  # [d, g, k]
    o: jax.Array  # [h, k, d]
    mlp_norm: jax.Array  # [d]
    gate: jax.Array  # [d, f]
    up: jax.Array  # [d, f]
    down: jax.Array  # [f, d]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The whole decoder."""

    embed: jax.Array  # [v, d]
    layers: LayerParams | tuple[LayerParams, ...]  # stacked, or one a layer after `unstack`
    final_norm: jax.Array  # [d]
    head: jax.Array | None  # [d, v]; None when tied to the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All there is to say about one parameter."""

    path: tuple[str, ...]  # attribute path in Params
    axes: tuple[str, ...]  # logical axes in memory
    init: Literal["normal", "ones"]
    fan_in: tuple[str, ...]  # axes summed over when applied; the normal's deviation is 1/sqrt of their product
    file: str  # name in safetensors files; {layer} where there is one a layer
    file_axes: tuple[tuple[str, ...], ...]  # axes in the file; several in one tuple are flattened together

    @property
    def stacked(self) -> bool:
        return self.axes[0] == "layer"

    def shape(self, spec: ModelSpec) -> tuple[int, ...]:
        """Shape in memory, the layer axis included."""
        return tuple(spec.axis_size(axis) for axis in self.axes)

    def file_shape(self, spec: ModelSpec) -> tuple[int, ...]:
        """Shape of one tensor in the file (of one layer where stacked)."""
        return tuple(math.prod(spec.axis_size(axis) for axis in group) for group in self.file_axes)

    def file_names(self, spec: ModelSpec) -> list[str]:
        """Names in the file, in layer order."""
        return [self.file.format(layer=layer) for layer in range(spec.layers)] if self.stacked else [self.file]

    def from_file(self, tensor: np.ndarray, spec: ModelSpec) -> np.ndarray:
        """One tensor of the file, rearranged to the axes of memory (without the layer axis)."""
        flat = [axis for group in self.file_axes for axis in group]
        unflattened = tensor.reshape([spec.axis_size(axis) for axis in flat])
        return unflattened.transpose([flat.index(axis) for axis in self._layer_axes()])

    def to_file(self, tensor: np.ndarray, spec: ModelSpec) -> np.ndarray:
        """The inverse of `from_file`."""
        flat = [axis for group in self.file_axes for axis in group]
        axes = self._layer_axes()
        return np.ascontiguousarray(tensor.transpose([axes.index(axis) for axis in flat])).reshape(self.file_shape(spec))

    def _layer_axes(self) -> tuple[str, ...]:
        return self.axes[1:] if self.stacked else self.axes


def declarations(spec: ModelSpec) -> list[Declaration]:
    """Every parameter of the decoder, in a fixed order."""

    def declare(path: str, axes: str, fan_in: str, file: str, file_axes: str) -> Declaration:
        return Declaration(
            path=tuple(path.split(".")),
            axes=tuple(axes.split()),
            init="normal" if fan_in else "ones",
            fan_in=tuple(fan_in.split()),
            file=file,
            file_axes=tuple(tuple(group.split("*")) for group in file_axes.split()),
        )

    block = "model.layers.{layer}."
    found = [
        declare("embed", "vocab embed", "embed", "model.embed_tokens.weight", "vocab embed"),
        declare("layers.attention_norm", "layer embed", "", block + "input_layernorm.weight", "embed"),
        declare("layers.q", "layer embed heads head_dim", "embed", block + "self_attn.q_proj.weight", "heads*head_dim embed"),
        declare("layers.k", "layer embed kv_heads head_dim", "embed", block + "self_attn.k_proj.weight", "kv_heads*head_dim embed"),
        declare("layers.v", "layer embed kv_heads head_dim", "embed", block + "self_attn.v_proj.weight", "kv_heads*head_dim embed"),
        declare("layers.o", "layer heads head_dim embed", "heads head_dim", block + "self_attn.o_proj.weight", "embed heads*head_dim"),
        declare("layers.mlp_norm", "layer embed", "", block + "post_attention_layernorm.weight", "embed"),
        declare("layers.gate", "layer embed mlp", "embed", block + "mlp.gate_proj.weight", "mlp embed"),
        declare("layers.up", "layer embed mlp", "embed", block + "mlp.up_proj.weight", "mlp embed"),
        declare("layers.down", "layer mlp embed", "mlp", block + "mlp.down_proj.weight", "embed mlp"),
        declare("final_norm", "embed", "", "model.norm.weight", "embed"),
    ]
    if not spec.tied:
        found.append(declare("head", "embed vocab", "embed", "lm_head.weight", "vocab embed"))
    return found


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


def initialise(spec: ModelSpec, seed: int, dtype: jnp.dtype | type = jnp.float32) -> Params:
    """Fresh weights: ones for norms, else normal with deviation 1/sqrt(fan in). Each draw is keyed by its parameter's name."""

    def draw(declaration: Declaration) -> jax.Array:
        shape = declaration.shape(spec)
        if declaration.init == "ones":
            return jnp.ones(shape, dtype)
        words = jnp.array(key_words(seed, "init", ".".join(declaration.path)), jnp.uint32)
        deviation = math.prod(spec.axis_size(axis) for axis in declaration.fan_in) ** -0.5
        return (deviation * jax.random.normal(jax.random.wrap_key_data(words), shape)).astype(dtype)

    return from_leaves({declaration.path: draw(declaration) for declaration in declarations(spec)})


def unstack(params: Params) -> Params:
    """The same weights with one LayerParams a layer, as unrolled execution wants them (slicing inside jit copies each step)."""
    layers = params.layers
    assert isinstance(layers, LayerParams)
    depth = layers.attention_norm.shape[0]
    split = tuple(jax.tree.map(lambda stacked, layer=layer: stacked[layer], layers) for layer in range(depth))
    return Params(embed=params.embed, layers=split, final_norm=params.final_norm, head=params.head)
