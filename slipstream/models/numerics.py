"""How numbers are rounded: `fast`, as XLA likes it in each program, or `exact`, to the same bits in every program.

Exact arithmetic rests on one property of a device: at a fixed shape, a row of an operation's result depends on that row alone.
So (a) every operation that rounds stands between optimization barriers, where no fusion can change its code; (b) sums run down
an explicit halving tree; (c) matrix products are made in tiles of a fixed number of rows; (d) attention goes over pages of a
fixed size from position 0 (`attention/paged.py`); (e) exp and log are taken of whole vectors. On CPUs (c) is not needed: there
products are our own code (`cpu/packed.py`), whose rows know nothing of each other. Both modes are the same functions: here is all that
differs.

XLA's CPU compiler drops barriers before it fuses, and then joins a product and a sum into one rounding wherever they meet;
programs in exact mode are compiled without that pass (and without one that, from jax 0.12 on, compiles small loops by other means, which
know no barriers). `barriers_hold` asks whether it worked. Tiles are taken together, up
to the number of rows at which this device was found to give the same bits (`row_classes`).

Only the forward pass must be exact: the backward pass of a tiled product is one product over all rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.models.cpu import packed
from slipstream.models.cpu.packed import Packed
from slipstream.models.row_classes import MOST_ROWS, rows_at_once, times


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Hashable, so a static argument."""

    exact: bool = False
    row_tile: int = 16  # every matrix product of exact mode gives the bits of one of so many rows; never 1, whose kernel is another
    kernels: bool = False  # without being exact, as exact numerics are on CPUs: by kernels of ours wherever there is one
    query_tile: int = 8  # rows of one sequence that attend together where many are at hand (learning, prefill)

    def seal(self, x: jax.Array) -> jax.Array:
        """A barrier that no operation is fused, moved or recomputed across."""
        return jax.lax.optimization_barrier(x) if self.exact else x

    def total(self, x: jax.Array) -> jax.Array:
        """The sum over the last axis, which stays with length 1."""
        return _tree_sum(x) if self.exact else jnp.sum(x, axis=-1, keepdims=True)

    def exp(self, x: jax.Array) -> jax.Array:
        """Elementwise exp. The last few elements of an array that is no whole number of vectors are computed by other code."""
        return self.seal(_of_whole_vectors(jnp.exp, self.seal(x))) if self.exact else jnp.exp(x)

    def log(self, x: jax.Array) -> jax.Array:
        """Elementwise natural logarithm, as `exp`."""
        return self.seal(_of_whole_vectors(jnp.log, self.seal(x))) if self.exact else jnp.log(x)

    def product(self, x: jax.Array, matrix: jax.Array | Packed, turned: bool = False) -> jax.Array:
        """x [..., i] times matrix [i, o], in x's dtype (products of bfloat16 are summed in float32 and rounded once).

        `turned`: the matrix lies as [o, i]. On devices that have no products of ours its bits are then others.
        """
        if isinstance(matrix, Packed):
            return packed.product(x, matrix, x.dtype)
        if not self.exact:
            return times(x, matrix, turned)
        flat = x.reshape(-1, x.shape[-1])
        (rows, width), columns = flat.shape, matrix.shape[0 if turned else 1]
        if self.own:
            found: Any = _by_panels(turned, flat, matrix)
        else:
            together = rows_at_once(self.row_tile, rows, width, columns, turned, flat.dtype.name, _compiler_options())
            found = _tiled(together, turned, flat, matrix)
        return found.reshape(*x.shape[:-1], columns)

    def batched(self, x: jax.Array, matrices: jax.Array) -> jax.Array:
        """x [u, g, m, i] times matrices [u, g, i, o], summed in float32, which it stays: the products of attention.

        On CPUs exact ones are of 2 to `MOST_ROWS` rows of float32, where XLA sums in one order: processors with tiles multiply bfloat16 in
        another order where there are more rows.
        """
        if not self.exact:
            return _batched(x, matrices)
        x, matrices = self.seal(x), self.seal(matrices)  # before they are widened, or XLA may drop the rounding to bfloat16
        if jax.default_backend() == "cpu":
            x, matrices = self.seal(x.astype(jnp.float32)), self.seal(matrices.astype(jnp.float32))
        rows = x.shape[2]
        enough = self.seal(jnp.repeat(x, 2, axis=2)) if rows == 1 else x
        parts = [self.seal(_batched(self.seal(part), matrices)) for part in jnp.array_split(enough, -(-rows // MOST_ROWS), axis=2)]
        return self.seal(jnp.concatenate(parts, axis=2)[:, :, :rows])

    def laid_out(self, matrix: jax.Array, turned: bool = False) -> tuple[jax.Array | Packed, bool]:
        """A matrix as many products want it, and whether it still lies turned. For a loop's outside; has no gradient."""
        return (packed.pack(matrix, turned=turned), False) if self.exact and self.own else (matrix, turned)

    @property
    def own(self) -> bool:
        """Whether kernels of ours take the place of XLA's operations."""
        return (self.exact or self.kernels) and packed.available()


FAST, EXACT = Numerics(), Numerics(exact=True)
SAMPLING = Numerics(kernels=True)  # fast numerics of samplers: XLA cannot split our kernels among devices, as it does for learners
_KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}
FEW_TILES = 4  # so many tiles are written out: a loop costs more than it saves
HALVINGS = 4  # of a tree sum in one pass over the numbers
_VECTOR = 16  # elements of the widest vector of any CPU


class Program:
    """`jax.jit` of one function for both modes; the function has a static keyword `numerics` that says which."""

    def __init__(self, function: Callable[..., Any], *, static: Sequence[str], donate: Sequence[str] = ()) -> None:
        self._function = function
        self._options: dict[str, Any] = {"static_argnames": ("numerics", *static), "donate_argnames": tuple(donate)}

    @cached_property
    def _fast(self) -> Any:
        return jax.jit(self._function, **self._options)

    @cached_property
    def _exact(self) -> Any:
        """Made when first called: which options there are depends on the device, and asking for it ends jax's set-up."""
        return jax.jit(self._function, **self._options, compiler_options=_compiler_options())

    def __call__(self, *arguments: Any, numerics: Numerics = FAST, **named: Any) -> Any:
        return self._of(numerics)(*arguments, numerics=numerics, **named)

    def lower(self, *arguments: Any, numerics: Numerics = FAST, **named: Any) -> Any:
        """The lowered program, for those who look at it or time its compilation."""
        return self._of(numerics).lower(*arguments, numerics=numerics, **named)

    def compiled(self) -> int:
        """Programs compiled so far; one more after the start means that a shape was not foreseen."""
        return self._fast._cache_size() + self._exact._cache_size()

    def _of(self, numerics: Numerics) -> Any:
        return self._exact if numerics.exact else self._fast


def barriers_hold() -> bool:
    """Whether a program of exact mode, compiled now, still has its barriers. Where it has not, exact mode must be refused."""

    def three(x: jax.Array, *, numerics: Numerics) -> jax.Array:
        return numerics.seal(jax.lax.fori_loop(0, 3, lambda _, x: numerics.seal(numerics.seal(x * x) + x), x))

    jitted = jax.jit(three, static_argnames=("numerics",), compiler_options=_compiler_options())
    text = jitted.lower(jnp.ones(64), numerics=EXACT).compile().as_text()
    return text is not None and text.count("opt-barrier(") == 3


def _compiler_options() -> dict[str, str] | None:
    return _KEEP_BARRIERS if jax.default_backend() == "cpu" else None


def _batched(x: jax.Array, matrices: jax.Array) -> jax.Array:
    return jnp.einsum("ugmi,ugio->ugmo", x, matrices, preferred_element_type=jnp.float32)


def _of_whole_vectors(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    if x.size % _VECTOR == 0:
        return function(x)
    padded = jnp.pad(x.reshape(-1), (0, -x.size % _VECTOR), constant_values=1.0)
    return jax.lax.optimization_barrier(function(jax.lax.optimization_barrier(padded)))[: x.size].reshape(x.shape)


def with_gradient_of(plain: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of arrays, whose backward pass is that of `plain`, the same mathematics in operations that have one."""

    @jax.custom_vjp
    def made(*arrays: jax.Array) -> Any:
        return kernel(*arrays)

    def saving(*arrays: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
        return kernel(*arrays), arrays

    def backward(saved: tuple[jax.Array, ...], cotangent: Any) -> Any:
        return jax.vjp(plain, *saved)[1](cotangent)

    made.defvjp(saving, backward)
    return made


def no_gradient(integers: jax.Array) -> np.ndarray:
    """The cotangent of integers, for backward passes of our own."""
    return np.zeros(integers.shape, jax.dtypes.float0)


def _tree_sum(x: jax.Array) -> jax.Array:
    """Halves are added until one number is left, each sum rounded by itself; the order depends on the length alone.

    A few halvings share a pass: only sums are in it, which the compiler may neither join nor reorder.
    """
    length = x.shape[-1]
    padded = 1 << max(0, length - 1).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padded - length)])
    while padded > 1:
        for _ in range(min(HALVINGS, padded.bit_length() - 1)):
            padded //= 2
            x = x[..., :padded] + x[..., padded:]
        x = jax.lax.optimization_barrier(x)
    return jax.lax.optimization_barrier(x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _tiled(tile: int, turned: bool, x: jax.Array, matrix: jax.Array) -> jax.Array:
    rows, width = x.shape
    x, matrix = jax.lax.optimization_barrier((x, matrix))
    tiles = jnp.pad(x, ((0, -rows % tile), (0, 0))).reshape(-1, tile, width)

    def product(rows_of_tile: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(times(jax.lax.optimization_barrier(rows_of_tile), matrix, turned))

    if tiles.shape[0] <= FEW_TILES:
        out = jnp.stack([product(tile) for tile in tiles])
    else:
        out = jax.lax.map(product, tiles)
    return jax.lax.optimization_barrier(out.reshape(-1, out.shape[-1])[:rows])


def _tiled_saving(tile: int, turned: bool, x: jax.Array, matrix: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _tiled(tile, turned, x, matrix), (x, matrix)


def _tiled_backward(tile: int, turned: bool, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _product_backward(turned, saved, cotangent)


def _product_backward(turned: bool, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, matrix = saved
    by_matrix = jnp.einsum("ni,no->oi" if turned else "ni,no->io", x, cotangent, preferred_element_type=jnp.float32)
    return times(cotangent, matrix, not turned), by_matrix.astype(matrix.dtype)


_tiled.defvjp(_tiled_saving, _tiled_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_panels(turned: bool, x: jax.Array, matrix: jax.Array) -> jax.Array:
    return packed.product(x, packed.pack(matrix, turned=turned), x.dtype)


def _by_panels_saving(turned: bool, x: jax.Array, matrix: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _by_panels(turned, x, matrix), (x, matrix)


_by_panels.defvjp(_by_panels_saving, _product_backward)
