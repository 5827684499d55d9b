"""What is done to each row between products, by our own kernels, where the device is a CPU: norms, rotary turns, gates, distributions.

XLA makes several passes of each, in exact numerics one an operation. A row's bits depend on that row alone.
"""

import jax
import jax.numpy as jnp

from slipstream.models.cpu import packed
from slipstream.models.cpu.by_row import LANES
from slipstream.models.cpu.compiled import known as known_kernel
from slipstream.models.cpu.gate import GateForm, gate_kernel
from slipstream.models.cpu.norm import NormForm, norm_kernel
from slipstream.models.cpu.shares import shares_kernel
from slipstream.models.cpu.softmax import softmax_kernel
from slipstream.models.cpu.turn import HALF_LANES, turn_kernel


def fits(x: jax.Array, lanes: int = LANES) -> bool:
    """Whether rows of this type and of this length of the last axis are the kernels'."""
    return packed.available() and x.shape[-1] % lanes == 0 and x.dtype.name in ("float32", "bfloat16")


def turns(x: jax.Array) -> bool:
    """Whether heads of this type and width can be turned."""
    return fits(x, 2 * HALF_LANES)


def norm(x: jax.Array, weight: jax.Array, eps: float, plus_one: bool) -> jax.Array:
    """`layers.rms_norm` of x [..., d] by a weight [d] of its type."""
    return _norm((x,), weight, eps, plus_one)[0]


def add_norm(x: jax.Array, y: jax.Array, weight: jax.Array, eps: float, plus_one: bool) -> tuple[jax.Array, jax.Array]:
    """x + y [..., d], and its norm."""
    normed, total = _norm((x, y), weight, eps, plus_one)
    return total, normed


def _norm(parts: tuple[jax.Array, ...], weight: jax.Array, eps: float, plus_one: bool) -> list[jax.Array]:
    x = parts[0]
    form = NormForm(stored=x.dtype.name, added=len(parts) > 1, plus_one=plus_one)
    flat = [part.reshape(-1, x.shape[-1]) for part in parts]
    shapes = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in flat)
    found = jax.ffi.ffi_call(known_kernel(norm_kernel, form), shapes)(*flat, weight, jnp.float32(eps))
    return [one.reshape(x.shape) for one in found]


def turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """`layers.rotate` of x [..., h, k] by float32 [..., k/2]."""
    flat = x.reshape(-1, *x.shape[-2:])
    tables = (table.reshape(-1, table.shape[-1]) for table in (cos, sin))
    shape = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    return jax.ffi.ffi_call(known_kernel(turn_kernel, x.dtype.name), shape)(flat, *tables).reshape(x.shape)


def gate(gates: jax.Array, up: jax.Array, activation: str) -> jax.Array:
    """`layers.gated` of two [..., f] of one type."""
    flat = [part.reshape(-1, up.shape[-1]) for part in (gates, up)]
    shape = jax.ShapeDtypeStruct(flat[0].shape, up.dtype)
    form = GateForm(stored=up.dtype.name, activation=activation)
    return jax.ffi.ffi_call(known_kernel(gate_kernel, form), shape)(*flat).reshape(up.shape)


def log_softmax(logits: jax.Array, temperature: jax.Array | float, known: int | None) -> tuple[jax.Array, jax.Array]:
    """Log-probs [n, v] of float32 logits [n, v] / temperature (a number, or [n, 1]), and the log-sum-exp [n, 1]. Ids from `known` on
    have no probability."""
    n, v = logits.shape
    divisor = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32).reshape(-1), (n,))
    shapes = (jax.ShapeDtypeStruct((n, v), jnp.float32), jax.ShapeDtypeStruct((n, 1), jnp.float32))
    log_probs, total = jax.ffi.ffi_call(known_kernel(softmax_kernel), shapes)(logits, divisor, jnp.int32(v if known is None else known))
    return log_probs, total


def block_shares(log_probs: jax.Array, width: int) -> jax.Array:
    """Probabilities [n, width] of blocks, each of every width-th id, by float32 log-probs [n, v]; width divides v."""
    shape = jax.ShapeDtypeStruct((log_probs.shape[0], width), jnp.float32)
    return jax.ffi.ffi_call(known_kernel(shares_kernel), shape)(log_probs)
