"""The forward pass of every family, written once. Who calls it decides how tokens attend: packed rows, slots, or pages.

A layer is two halves that look at one row (token) at a time, with attention between them:
`attend(q, k, v, at, state) -> (mixed, state)`, where `state` is the caller's own (a key/value cache, or None).

Letters: ... rows in any layout, d model width, h query heads, g key/value heads, k head width, v vocabulary, L layers, e experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.models.attention import paged
from slipstream.models.attention.rule import AttentionRule, PackedRows, attention_rule
from slipstream.models.experts import mixture
from slipstream.models.layers import add_norm, gated, rms_norm, rope_tables, rotate, soft_cap
from slipstream.models.lora import Adapters, LayerAdapters
from slipstream.models.numerics import FAST, Numerics
from slipstream.models.parameters import LayerParams, Params, output_matrix
from slipstream.models.sharding import constrain, gathered_embedding
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import project, project_each


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where in the stack a layer is. Traced numbers where layers are scanned."""

    layer: int | jax.Array
    window: int | jax.Array  # tokens it sees, itself included; 0 = all


Attend = Callable[[jax.Array, jax.Array, jax.Array, At, Any], tuple[jax.Array, Any]]
PagedAttention = Callable[[jax.Array, jax.Array, jax.Array, int | jax.Array, int | jax.Array, AttentionRule], jax.Array]
Ropes = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array] | None]  # of layers that see all, and of those with a window


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What a forward pass gives."""

    hidden: jax.Array  # [..., d], after the last norm
    state: Any  # the caller's, threaded through the layers
    expert_load: jax.Array  # float32 [L, e], visits of each expert; [L, 0] without experts


def hidden_states(
    params: Params,
    spec: ModelSpec,
    token_ids: jax.Array,
    positions: jax.Array,
    attend: Attend,
    state: Any,
    *,
    dtype: jnp.dtype | type | None = None,
    scan: bool = False,
    remat: bool = False,
    adapters: Adapters | None = None,
    counted: jax.Array | None = None,
    numerics: Numerics = FAST,
) -> Forward:
    """The decoder over tokens and positions [...].

    `dtype` is that of activations and products (None: the embedding's); weights are rounded to it at use. `scan` compiles one
    layer and loops over stacked ones; otherwise layers are unrolled, stacked or not. `remat` recomputes activations in the
    backward pass. `counted` (bool [...]) says which tokens count in the experts' load.
    """
    x = constrain(embed(params, spec, token_ids, dtype, numerics))
    ropes = _rope_tables(spec, positions, numerics)

    def one_layer(carry: tuple[jax.Array, Any], layer: tuple[LayerParams, LayerAdapters | None], at: At):
        x, state = carry
        weights, adapter = layer
        q, k, v = attention_inputs(weights, spec, x, _rope_at(ropes, at), adapter, numerics)
        mixed, state = attend(q, k, v, at, state)
        x, load = attention_outputs(weights, spec, x, mixed, adapter, counted, numerics)
        return (constrain(x), state), load

    run = _scanned if scan else _unrolled
    (x, state), load = run(one_layer, (x, state), params, adapters, spec, remat)
    return Forward(hidden=_norm(spec, x, params.final_norm, numerics), state=state, expert_load=load)


def packed_hidden_states(
    params: Params,
    spec: ModelSpec,
    token_ids: jax.Array,
    rows: PackedRows,
    attention: Callable[..., jax.Array],
    *,
    dtype: jnp.dtype | type | None = None,
    scan: bool = False,
    remat: bool = False,
    adapters: Adapters | None = None,
    numerics: Numerics = FAST,
) -> Forward:
    """The decoder over packed rows [b, t]; `attention` is one of `attention.registry.PACKED`. Padding counts in no load."""
    rule = attention_rule(spec)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, at: At, state: None) -> tuple[jax.Array, None]:
        return attention(q, k, v, rows, at.window, rule), state

    options: dict[str, Any] = {"dtype": dtype, "scan": scan, "remat": remat, "adapters": adapters, "counted": rows.segments > 0}
    return hidden_states(params, spec, token_ids, rows.positions, attend, None, numerics=numerics, **options)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """A pool of pages, as `paged.as_stored`. A page that nobody reads takes what unused rows write."""

    keys: jax.Array  # [L, p, g, k, B]
    values: jax.Array  # [L, p, g, B, k]

    @property
    def scratch(self) -> int:
        """The last page."""
        return self.values.shape[1] - 1

    @property
    def page_tokens(self) -> int:
        return self.values.shape[3]


def empty_pages(spec: ModelSpec, pages: int, page_tokens: int, dtype: jnp.dtype | type) -> Pages:
    """A zeroed pool of keys and values in `dtype`."""
    heads = (spec.layers, pages, spec.kv_heads)
    keys, values = (jnp.zeros((*heads, *shape), dtype) for shape in ((spec.head_dim, page_tokens), (page_tokens, spec.head_dim)))
    return Pages(keys=paged.as_stored(keys), values=paged.as_stored(values))


def paged_hidden_states(
    params: Params,
    spec: ModelSpec,
    pages: Pages,
    token_ids: jax.Array,
    positions: jax.Array,
    places: jax.Array,
    attention: PagedAttention,
    *,
    scan: bool = False,
    adapters: Adapters | None = None,
    numerics: Numerics = FAST,
) -> Forward:
    """One step of rows: each a token [n] at its position [n] of some sequence, whose keys and values go to page `places` [n].

    `attention(q [n, h, k], keys [L p, g, k, B], values [L p, g, B, k], first, window, rule)` knows the tables, to whose pages it adds
    `first`, this layer's first page: so no layer is cut out of the pool, which would copy it. All rows are written before
    any attends, so rows of one prompt may stand in one call. The pool rides in the carry: a scan that takes and returns it layer by
    layer copies it too. `state` of the result is the new pool.
    """
    rule = attention_rule(spec)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, at: At, pool: Pages) -> tuple[jax.Array, Pages]:
        keys, values = paged.write(pool.keys, pool.values, at.layer, (k, v), places, positions)
        flat_keys, flat_values = (part.reshape(-1, *part.shape[2:]) for part in (keys, values))
        mixed = attention(q, flat_keys, flat_values, at.layer * keys.shape[1], at.window, rule)
        return mixed, Pages(keys=keys, values=values)

    options: dict[str, Any] = {"dtype": paged.dtype_of(pages.keys), "scan": scan, "adapters": adapters, "numerics": numerics}
    return hidden_states(params, spec, token_ids, positions, attend, pages, **options)


def embed(params: Params, spec: ModelSpec, token_ids: jax.Array, dtype: jnp.dtype | type | None, numerics: Numerics = FAST) -> jax.Array:
    """Embeddings [..., d] of tokens [...]; the table may lie as bits (`paged.as_stored`)."""
    table = gathered_embedding(params.embed)
    own = paged.dtype_of(table)
    x = numerics.seal(paged.numbers(table[token_ids], own).astype(dtype or own))
    return numerics.seal(x * jnp.asarray(spec.d_model**0.5, x.dtype)) if spec.scale_embedding else x


def logits(params: Params, spec: ModelSpec, hidden: jax.Array, numerics: Numerics = FAST) -> jax.Array:
    """Logits float32 [..., v] of final hidden states [..., d]; those of padding rows of the vocabulary are not masked here."""
    matrix, turned = output_matrix(params)
    raw = project(hidden, matrix, turned=turned, numerics=numerics)
    return soft_cap(raw.astype(jnp.float32), spec.logit_softcap, numerics)


def attention_inputs(
    layer: LayerParams,
    spec: ModelSpec,
    x: jax.Array,
    rope: tuple[jax.Array, jax.Array],
    adapter: LayerAdapters | None,
    numerics: Numerics = FAST,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [..., h, k], keys and values [..., g, k] of rows x [..., d]."""
    adapter = adapter or LayerAdapters()
    normed = _norm(spec, x, layer.attention_norm, numerics)
    q, k, v = project_each(normed, ((layer.q, adapter.q), (layer.k, adapter.k), (layer.v, adapter.v)), numerics)
    if layer.q_bias is not None and layer.k_bias is not None and layer.v_bias is not None:
        q, k, v = (
            numerics.seal(part + numerics.seal(bias.astype(part.dtype)))
            for part, bias in ((q, layer.q_bias), (k, layer.k_bias), (v, layer.v_bias))
        )
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(spec, q, layer.q_norm, numerics), _norm(spec, k, layer.k_norm, numerics)
    return rotate(q, *rope, numerics), rotate(k, *rope, numerics), v


def attention_outputs(
    layer: LayerParams,
    spec: ModelSpec,
    x: jax.Array,
    mixed: jax.Array,
    adapter: LayerAdapters | None,
    counted: jax.Array | None,
    numerics: Numerics = FAST,
) -> tuple[jax.Array, jax.Array]:
    """x [..., d] after the layer, from what its heads mixed [..., h, k]; and the experts' load [e]."""
    adapter = adapter or LayerAdapters()
    out = project(mixed, layer.o, inputs=2, adapter=adapter.o, numerics=numerics)
    added = _post_norm(spec, out, layer.attention_post_norm, numerics)
    x, normed = add_norm(x, added, layer.mlp_norm, spec.norm_eps, spec.norm_plus_one, numerics)
    out, load = _feed_forward(layer, spec, normed, adapter, counted, numerics)
    return numerics.seal(x + _post_norm(spec, out, layer.mlp_post_norm, numerics)), load


def _feed_forward(
    layer: LayerParams, spec: ModelSpec, x: jax.Array, adapter: LayerAdapters, counted: jax.Array | None, numerics: Numerics
) -> tuple[jax.Array, jax.Array]:
    if spec.experts is None or layer.router is None:
        gate, up = project_each(x, ((layer.gate, adapter.gate), (layer.up, adapter.up)), numerics)
        inner = gated(gate, up, spec.activation, numerics)
        return project(inner, layer.down, adapter=adapter.down, numerics=numerics), jnp.zeros(0)
    flat = x.reshape(-1, spec.d_model)
    counted = None if counted is None else counted.reshape(-1)
    experts = (layer.gate, layer.up, layer.down)
    out, load = mixture(flat, layer.router, *experts, spec.experts, spec.activation, counted, numerics)
    return out.reshape(x.shape), load


def _norm(spec: ModelSpec, x: jax.Array, weight: jax.Array, numerics: Numerics) -> jax.Array:
    return rms_norm(x, weight, spec.norm_eps, spec.norm_plus_one, numerics)


def _post_norm(spec: ModelSpec, x: jax.Array, weight: jax.Array | None, numerics: Numerics) -> jax.Array:
    return x if weight is None else _norm(spec, x, weight, numerics)


def _rope_tables(spec: ModelSpec, positions: jax.Array, numerics: Numerics) -> Ropes:
    local = None if spec.local_rope is None else rope_tables(positions, spec.head_dim, spec.local_rope, numerics)
    return rope_tables(positions, spec.head_dim, spec.rope, numerics), local


def _rope_at(ropes: Ropes, at: At) -> tuple[jax.Array, jax.Array]:
    everywhere, local = ropes
    if local is None:
        return everywhere
    if isinstance(at.window, int):
        return local if at.window else everywhere
    return jax.tree.map(lambda here, there: jnp.where(at.window > 0, here, there), local, everywhere)


def _scanned(one_layer, carry, params: Params, adapters: Adapters | None, spec: ModelSpec, remat: bool):
    assert isinstance(params.layers, LayerParams), "scanning needs stacked layers"
    windows = None if spec.windows is None else jnp.array(spec.windows, jnp.int32)

    def step(carry, inputs):
        layer, adapter, index, window = inputs
        return one_layer(carry, (layer, adapter), At(layer=index, window=0 if window is None else window))

    stacked = (params.layers, adapters.layers if adapters else None, jnp.arange(spec.layers), windows)
    return jax.lax.scan(jax.checkpoint(step) if remat else step, carry, stacked)


def _unrolled(one_layer, carry, params: Params, adapters: Adapters | None, spec: ModelSpec, remat: bool):
    loads = []
    for index in range(spec.layers):
        at = At(layer=index, window=spec.windows[index] if spec.windows else 0)
        layer = params.layers[index] if isinstance(params.layers, tuple) else _slice(params.layers, index)
        adapter = _slice(adapters.layers, index) if adapters else None

        def step(carry, weights, at=at):
            return one_layer(carry, weights, at)

        carry, load = (jax.checkpoint(step) if remat else step)(carry, (layer, adapter))
        loads.append(load)
    return carry, jnp.stack(loads)


def _slice(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)
