"""The implementations of attention by name, and the probe that picks one: the first that this device can run and that is right.

The order is fixed and no clock is asked, so the same machine always computes the same bits. Kernels of other packages are
imported only where they may be used; whatever they raise while being probed rules them out, and is told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.attention.chunked import chunked
from slipstream.models.attention.dense import dense
from slipstream.models.attention.optional import tokamax
from slipstream.models.attention.paged import by_page, gathered, in_pages
from slipstream.models.attention.rule import AttentionRule, PackedRows

Attention = Callable[..., jax.Array]
Kind = Literal["packed", "paged"]

PACKED: Mapping[str, Attention] = {"dense": dense, "chunked": chunked, "tokamax": tokamax}
PAGED: Mapping[str, Attention] = {"gathered": gathered, "by_page": by_page}
_ORDER: Mapping[Kind, tuple[str, ...]] = {"packed": ("tokamax", "chunked", "dense"), "paged": ("by_page", "gathered")}  # oracle last
_ACCELERATED = frozenset({"tokamax"})  # not tried on CPU
_TOLERANCE = {"float32": 2e-5, "bfloat16": 1.5e-2}  # largest `Probed.difference` allowed. Accelerators round the factors of
# float32 products (to tensorfloat32 or bfloat16), so there float32 has the wide one too
_REFUSALS = (ImportError, AttributeError, AssertionError, LookupError, ValueError, TypeError, RuntimeError, ExceptionGroup)
DENSE_UP_TO = 256  # tokens of a row; below, holding all scores is faster and small (measured on CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What became of one candidate."""

    name: str
    difference: float | None  # largest from the oracle, of values and gradients, in units of the largest value; None: did not run
    usable: bool
    cause: str  # why not; empty where usable


def pick(kind: Kind, heads: int, kv_heads: int, head_dim: int, dtype: str, rule: AttentionRule) -> str:
    """The name of the first implementation that is right on the present device for heads of this shape.

    Raises RuntimeError when not even the plain ones are, with what each did: such a device must not be trained on.
    """
    found = probe(kind, heads, kv_heads, head_dim, dtype, rule)
    for candidate in found:
        if candidate.usable:
            return candidate.name
    causes = "; ".join(f"{candidate.name}: {candidate.cause}" for candidate in found)
    raise RuntimeError(f"no {kind} attention is right on this device: {causes}")


@cache
def probe(kind: Kind, heads: int, kv_heads: int, head_dim: int, dtype: str, rule: AttentionRule) -> tuple[Probed, ...]:
    """Every candidate of this platform against the oracle, on small random inputs, up to the first that is usable."""
    names = [name for name in _ORDER[kind] if name not in _ACCELERATED or jax.default_backend() != "cpu"]
    compare = _packed_outputs if kind == "packed" else _paged_outputs
    implementations = PACKED if kind == "packed" else PAGED
    oracle = compare(implementations[names[-1]], heads, kv_heads, head_dim, "float32", rule)
    found = []
    for name in names:
        found.append(_judge(name, lambda name=name: compare(implementations[name], heads, kv_heads, head_dim, dtype, rule), oracle, dtype))
        if found[-1].usable:
            break
    return tuple(found)


def _judge(name: str, run: Callable[[], list[np.ndarray]], oracle: list[np.ndarray], dtype: str) -> Probed:
    try:
        outputs = run()
    except _REFUSALS as error:
        return Probed(name=name, difference=None, usable=False, cause=f"{type(error).__name__}: {error}".splitlines()[0])
    difference = float(np.max([_distance(ours, theirs) for ours, theirs in zip(outputs, oracle, strict=True)]))  # NaN if any is
    tolerance = _TOLERANCE[dtype if jax.default_backend() == "cpu" else "bfloat16"]
    usable = difference <= tolerance  # False for NaN
    cause = "" if usable else f"differs from the plain computation by {difference:.2g} of the largest value, more than {tolerance:.0e}"
    return Probed(name=name, difference=difference, usable=usable, cause=cause)


def _distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def _packed_outputs(attention: Attention, heads: int, kv_heads: int, head_dim: int, dtype: str, rule: AttentionRule) -> list[np.ndarray]:
    """Values and gradients over a row with a shared prompt, two branches, a segment alone and padding."""
    lengths = (("prompt", 150, 1, 1), ("branch", 70, 2, 1), ("branch", 61, 3, 1), ("alone", 83, 4, 4), ("padding", 20, 0, 0))
    segments, parents, positions = [], [], []
    for what, length, segment, parent in lengths:
        first = lengths[0][1] if what == "branch" else 0
        segments += [segment] * length
        parents += [parent] * length
        positions += [0] * length if what == "padding" else list(range(first, first + length))
    rows = PackedRows(
        **{
            name: jnp.asarray([column], jnp.int32)
            for name, column in (("segments", segments), ("parents", parents), ("positions", positions))
        }
    )
    q, k, v, weight = _random(len(segments), heads, kv_heads, head_dim)
    real = rows.segments[..., None, None] > 0

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = jnp.where(real, attention(q, k, v, rows, 100, rule), 0.0)
        return jnp.sum(mixed.astype(jnp.float32) * weight), mixed

    gradients, mixed = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*(array.astype(dtype) for array in (q, k, v)))
    return [np.asarray(array.astype(jnp.float32)) for array in (mixed, *gradients)]


def _paged_outputs(attention: Attention, heads: int, kv_heads: int, head_dim: int, dtype: str, rule: AttentionRule) -> list[np.ndarray]:
    """Rows of unlike lengths whose pages lie anywhere, two of them sharing their first."""
    page, blocks = 16, 8
    positions = jnp.array([0, 15, 16, 77, 127, 100, 31, 64], jnp.int32)
    order = np.random.default_rng(1).permutation(len(positions) * blocks).reshape(len(positions), blocks)
    order[5, 0] = order[4, 0]
    q, k, v, _ = _random(len(positions) * blocks * page, heads, kv_heads, head_dim)
    keys, values = in_pages(k.astype(dtype), v.astype(dtype), page)
    run: Any = jax.jit(attention, static_argnums=(5, 6))
    mixed = run(q[0, : len(positions)].astype(dtype), keys, values, jnp.asarray(order, jnp.int32), positions, 100, rule)
    return [np.asarray(mixed.astype(jnp.float32))]


def _random(tokens: int, heads: int, kv_heads: int, head_dim: int) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    counts = (heads, kv_heads, kv_heads, heads)
    return [jnp.asarray(rng.normal(size=(1, tokens, count, head_dim)), jnp.float32) for count in counts]
