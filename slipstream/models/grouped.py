"""Products of sorted rows with one matrix a group, computing only the groups that each row belongs to.

XLA's `ragged_dot` is that on TPU and GPU; on CPU it computes every group for every row (8 groups: 13 times slower than one
product, measured), so there rows are laid out in blocks that belong to one group each and the blocks are looped over.

Letters: m rows sorted by group, e groups, i inputs, o outputs, c blocks, x rows of a block.
"""

from functools import partial

import jax
import jax.numpy as jnp

from slipstream.models.cpu.packed import Packed
from slipstream.models.numerics import FAST, Numerics, no_gradient
from slipstream.models.weight import Quantised, Weight

BLOCK = 16  # rows; a group's last block is partly empty, so small blocks waste little and large ones run faster


def grouped_project(x: jax.Array, weight: Weight, sizes: jax.Array, numerics: Numerics = FAST) -> jax.Array:
    """x [m, i], whose first sizes[0] rows belong to group 0 and so on, times weight [e, i, o] -> [m, o] in x's dtype."""
    if isinstance(weight, Quantised):
        product = _grouped(x, weight.stored, sizes, numerics)
        scale = jnp.repeat(weight.scale, sizes, axis=0, total_repeat_length=x.shape[0])
        return numerics.seal((product.astype(jnp.float32) * scale).astype(x.dtype))
    return _grouped(x, weight, sizes, numerics)


def _grouped(x: jax.Array, weight: jax.Array | Packed, sizes: jax.Array, numerics: Numerics) -> jax.Array:
    assert isinstance(weight, jax.Array), "experts are never packed"
    if numerics.exact or jax.default_backend() == "cpu":  # a block has a fixed number of rows, so blocks are exact
        return numerics.seal(grouped_blocks(numerics.seal(x), numerics.seal(weight), sizes))
    return jax.lax.ragged_dot(x, weight.astype(x.dtype), sizes)


@jax.custom_vjp
def grouped_blocks(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
    """`ragged_dot` by a loop over blocks of one group each; empty blocks are skipped. Only matrices in use are widened to x's dtype."""
    laid = _lay_out(sizes, x.shape[0])

    def block(inputs: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        rows, group, used = inputs
        return jax.lax.cond(
            used, lambda: _one_block(rows, weight[group].astype(x.dtype)), lambda: jnp.zeros((BLOCK, weight.shape[2]), x.dtype)
        )

    return _collect(jax.lax.map(block, (_spread(x, laid), laid.group, laid.used)), laid)


def _one_block(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """Between barriers, as exact mode wants it: they cost nothing."""
    return jax.lax.optimization_barrier(jax.lax.optimization_barrier(rows) @ matrix)


def _saving(x: jax.Array, weight: jax.Array, sizes: jax.Array):
    return grouped_blocks(x, weight, sizes), (x, weight, sizes)


def _backward(saved: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array):
    x, weight, sizes = saved
    laid = _lay_out(sizes, x.shape[0])

    def block(total: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array, jax.Array]):
        rows, ct, group, used = inputs

        def add() -> tuple[jax.Array, jax.Array]:
            product = jnp.einsum("xi,xo->io", rows, ct, preferred_element_type=jnp.float32)
            return total.at[group].add(product), ct @ weight[group].astype(ct.dtype).T

        return jax.lax.cond(used, add, lambda: (total, jnp.zeros_like(rows)))

    start = jnp.zeros(weight.shape, jnp.float32)
    dweight, dx = jax.lax.scan(block, start, (_spread(x, laid), _spread(cotangent, laid), laid.group, laid.used))
    trained = jnp.issubdtype(weight.dtype, jnp.floating)
    return _collect(dx, laid), dweight.astype(weight.dtype) if trained else no_gradient(weight), no_gradient(sizes)


grouped_blocks.defvjp(_saving, _backward)


@partial(jax.tree_util.register_dataclass, data_fields=("place", "group", "used"), meta_fields=())
class _Layout:
    """Where each sorted row lies in the blocks."""

    def __init__(self, place: jax.Array, group: jax.Array, used: jax.Array) -> None:
        self.place = place  # int32 [m], row index among all blocks' rows
        self.group = group  # int32 [c]
        self.used = used  # bool [c]


def _lay_out(sizes: jax.Array, rows: int) -> _Layout:
    """Each group takes whole blocks. There are never more than rows / BLOCK + one a group that has a row."""
    groups = sizes.shape[0]
    count = rows // BLOCK + min(groups, rows)
    blocks = -(-sizes // BLOCK)
    ends = jnp.cumsum(blocks)
    index = jnp.arange(count)
    group = jnp.minimum(jnp.searchsorted(ends, index, side="right"), groups - 1)
    own = jnp.repeat(jnp.arange(groups), sizes, total_repeat_length=rows)
    place = jnp.arange(rows) - (jnp.cumsum(sizes) - sizes)[own] + (ends - blocks)[own] * BLOCK
    return _Layout(place.astype(jnp.int32), group.astype(jnp.int32), index < ends[-1])


def _spread(rows: jax.Array, laid: _Layout) -> jax.Array:
    """Sorted rows [m, i] into blocks [c, x, i]; empty places are zero."""
    count = laid.group.shape[0]
    return jnp.zeros((count * BLOCK, rows.shape[1]), rows.dtype).at[laid.place].set(rows, unique_indices=True).reshape(count, BLOCK, -1)


def _collect(blocks: jax.Array, laid: _Layout) -> jax.Array:
    return blocks.reshape(-1, blocks.shape[2])[laid.place]
