"""A mixture of experts: a router picks a few experts a token, and only those are computed (Shazeer et al. 2017, arXiv 1701.06538).

Letters: n rows, d model width, e experts, f width of an expert, a experts a token, m = n a visits.
"""

import jax
import jax.numpy as jnp

from slipstream.models.grouped import grouped_project
from slipstream.models.layers import gated
from slipstream.models.numerics import FAST, Numerics
from slipstream.models.spec import ExpertSpec
from slipstream.models.weight import Weight


def route(x: jax.Array, router: jax.Array, spec: ExpertSpec, numerics: Numerics = FAST) -> tuple[jax.Array, jax.Array]:
    """The chosen experts [n, a] of rows [n, d], best first, and their float32 weights [n, a]: softmax over all, then the top ones."""
    seal = numerics.seal
    scores = numerics.product(x, router.astype(x.dtype)).astype(jnp.float32)
    raised = numerics.exp(seal(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))))
    weights, chosen = jax.lax.top_k(seal(raised / numerics.total(raised)), spec.per_token)
    return chosen, seal(weights / numerics.total(weights)) if spec.normalise else weights


def mixture(
    x: jax.Array,
    router: jax.Array,
    gate: Weight,
    up: Weight,
    down: Weight,
    spec: ExpertSpec,
    activation: str,
    counted: jax.Array | None,
    numerics: Numerics = FAST,
) -> tuple[jax.Array, jax.Array]:
    """The mixture's output [n, d] for rows [n, d], and its load: float32 [e], visits of each expert by `counted` rows (bool [n])."""
    rows, width = x.shape
    chosen, weights = route(x, router, spec, numerics)
    visits = chosen.reshape(-1)
    order = jnp.argsort(visits, stable=True)  # visits sorted by expert
    sizes = jnp.bincount(visits, length=spec.count).astype(jnp.int32)
    visiting = x[order // spec.per_token]
    gates, ups = (grouped_project(visiting, matrix, sizes, numerics) for matrix in (gate, up))
    inner = gated(gates, ups, activation, numerics)
    outputs = grouped_project(inner, down, sizes, numerics)
    back = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0]), unique_indices=True)
    each = outputs[back].reshape(rows, spec.per_token, width)
    weighted = numerics.seal(each * numerics.seal(weights.astype(x.dtype))[..., None])
    mixed = numerics.total(weighted.swapaxes(1, 2))[..., 0]
    one = jnp.ones(rows) if counted is None else counted.astype(jnp.float32)
    load = jnp.zeros(spec.count).at[visits].add(jnp.repeat(one, spec.per_token))
    return mixed, jax.lax.stop_gradient(load)
