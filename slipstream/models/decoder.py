"""The forward pass, written once. Who calls it decides how tokens attend: the learner over packed rows, the engine over a cache.

`hidden_states` threads an opaque cache through the layers: `attention(q, k, v, cache_of_layer) -> (mixed, cache_of_layer)`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.models.layers import attend, attention_layout, rms_norm, rope_tables, rotate
from slipstream.models.parameters import LayerParams, Params
from slipstream.models.spec import ModelSpec

Attention = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]


def block(spec: ModelSpec, layer: LayerParams, x: jax.Array, cos: jax.Array, sin: jax.Array, attention: Attention, cache: Any):
    """One layer on x [b, t, d]; returns the new x and the layer's cache."""
    normed = rms_norm(x, layer.attention_norm, spec.norm_eps)
    q = rotate(jnp.einsum("btd,dhk->bthk", normed, layer.q), cos, sin)
    k = rotate(jnp.einsum("btd,dgk->btgk", normed, layer.k), cos, sin)
    v = jnp.einsum("btd,dgk->btgk", normed, layer.v)
    mixed, cache = attention(q, k, v, cache)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, layer.o)
    normed = rms_norm(x, layer.mlp_norm, spec.norm_eps)
    gated = jax.nn.silu(jnp.einsum("btd,df->btf", normed, layer.gate)) * jnp.einsum("btd,df->btf", normed, layer.up)
    return x + jnp.einsum("btf,fd->btd", gated, layer.down), cache


def hidden_states(
    params: Params, spec: ModelSpec, token_ids: jax.Array, positions: jax.Array, attention: Attention, caches: tuple[Any, ...]
) -> tuple[jax.Array, tuple[Any, ...]]:
    """Final hidden states [b, t, d] of tokens [b, t] with unstacked layers, and each layer's new cache."""
    assert isinstance(params.layers, tuple)
    x = params.embed[token_ids]
    cos, sin = rope_tables(positions, spec.head_dim, spec.rope_theta)
    new_caches = []
    for layer, cache in zip(params.layers, caches, strict=True):
        x, cache = block(spec, layer, x, cos, sin, attention, cache)
        new_caches.append(cache)
    return rms_norm(x, params.final_norm, spec.norm_eps), tuple(new_caches)


def packed_hidden_states(
    params: Params, spec: ModelSpec, token_ids: jax.Array, positions: jax.Array, allowed: jax.Array, *, scan: bool, remat: bool
) -> jax.Array:
    """Final hidden states [b, t, d] of packed rows, where `allowed` [b, t, t] says which tokens see which. Layers are stacked.

    `scan` compiles one layer and loops (deep models); otherwise layers are unrolled. `remat` recomputes activations backward.
    """
    assert isinstance(params.layers, LayerParams)
    cos, sin = rope_tables(positions, spec.head_dim, spec.rope_theta)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, cache: None) -> tuple[jax.Array, None]:
        return attend(q, *attention_layout(k, v), allowed), cache

    def one_layer(x: jax.Array, layer: LayerParams) -> tuple[jax.Array, None]:
        return block(spec, layer, x, cos, sin, attention, None)

    one_layer = jax.checkpoint(one_layer) if remat else one_layer
    x = params.embed[token_ids]
    if scan:
        x, _ = jax.lax.scan(one_layer, x, params.layers)
    else:
        for index in range(spec.layers):
            x, _ = one_layer(x, jax.tree.map(lambda stacked, index=index: stacked[index], params.layers))
    return rms_norm(x, params.final_norm, spec.norm_eps)


def output_matrix(params: Params) -> jax.Array:
    """The output projection [d, v]."""
    return params.embed.T if params.head is None else params.head
