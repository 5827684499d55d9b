"""Functions of vectors in our own kernels against numpy's float64, and rounding to bfloat16 against numpy's, to the bit."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir

from slipstream.models.cpu import packed
from slipstream.models.cpu.compiled import register
from slipstream.models.cpu.emit import counting, element, f32, function, i64, nothing, pointer
from slipstream.models.cpu.exponential import LOWEST, define_exponential, define_logarithm
from slipstream.models.cpu.handler import Call, Kernel
from slipstream.models.cpu.hyperbolic import define_logistic, define_tanh
from slipstream.models.cpu.tile import STORED, store_as

pytestmark = pytest.mark.skipif(not packed.available(), reason="no kernels of ours on this processor")

Define: TypeAlias = Callable[[ir.Module, int], ir.Function]

LANES = 16
NAN, INFINITE = float("nan"), float("inf")


def kernel(name: str, define: Define | None, stored: str) -> Kernel:
    """Numbers float32 [n], n a multiple of the lanes, through a function, stored as a type."""

    def read(call: Call):
        return {"x": call.data(0), "out": call.data(1), "count": call.length(0, 0)}, i64(1), i64(0)

    def define_unit(module: ir.Module, job) -> ir.Function:
        made, builder = function(module, "unit", nothing, pointer, i64)
        x, out, count = (job.get(builder, made.args[0], field) for field in ("x", "out", "count"))
        with counting(builder, i64(0), count, LANES) as loop:
            vector = builder.load(element(builder, f32, x, loop.index), align=4, typ=ir.VectorType(f32, LANES))
            if define:
                vector = builder.call(define(module, LANES), [vector])
            store_as(builder, stored, vector, element(builder, STORED[stored], out, loop.index))
        builder.ret_void()
        return made

    return Kernel(name=name, arguments=1, job={"x": pointer, "out": pointer, "count": i64}, read=read, define_unit=define_unit)


@cache
def named(define: Define | None, stored: str) -> str:
    """A kernel's name, which XLA takes once."""
    name = f"test_{define.__name__ if define else 'rounded'}_{stored}"
    register(name, kernel(name, define, stored))
    return name


def computed(define: Define | None, numbers: np.ndarray, stored: str = "float32") -> np.ndarray:
    padded = np.pad(numbers.astype(np.float32), (0, -numbers.size % LANES))
    found = jax.ffi.ffi_call(named(define, stored), jax.ShapeDtypeStruct(padded.shape, jnp.dtype(stored)))(jnp.asarray(padded))
    return np.asarray(found)[: numbers.size]


def swept(highest: float) -> np.ndarray:
    """A million float32 numbers up to this one: evenly among all there are, and among those from 0.01 on."""
    *starts, last = (int(np.float32(end).view(np.int32)) for end in (np.finfo(np.float32).smallest_normal, 0.01, highest))
    return np.concatenate([np.linspace(first, last, 500_000).astype(np.int32) for first in starts]).view(np.float32)


def units_off(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance, in units in the last place of what is expected."""
    return float((np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(expected).astype(np.float32))).max())


def test_the_exponential() -> None:
    x = -swept(-LOWEST)
    assert units_off(computed(define_exponential, x), np.exp(x.astype(np.float64))) < 1.2
    special = computed(define_exponential, np.array([0.0, -0.0, np.nextafter(np.float32(LOWEST), np.float32(-100)), -1e30, -INFINITE, NAN]))
    np.testing.assert_array_equal(special, [1, 1, 0, 0, 0, NAN])


def test_the_logarithm() -> None:
    x = swept(np.finfo(np.float32).max)
    assert units_off(computed(define_logarithm, x[x != 1]), np.log(x[x != 1].astype(np.float64))) < 2
    np.testing.assert_array_equal(computed(define_logarithm, np.array([1.0, NAN])), [0, NAN])


def test_the_hyperbolic_tangent() -> None:
    x = swept(1e3)
    found = computed(define_tanh, x)
    assert units_off(found, np.tanh(x.astype(np.float64))) < 1.5
    assert found.max() == 1
    assert (found[x > 10] == 1).all()
    np.testing.assert_array_equal(computed(define_tanh, -x), -found)
    special = computed(define_tanh, np.array([0.0, -0.0, 1e30, -1e30, INFINITE, -INFINITE, NAN]))
    np.testing.assert_array_equal(special, [0, 0, 1, -1, 1, -1, NAN])
    np.testing.assert_array_equal(np.signbit(special[:6]), [False, True] * 3)


def test_the_logistic_function() -> None:
    for x in (swept(1e3), -swept(-LOWEST)):
        assert units_off(computed(define_logistic, x), 1 / (1 + np.exp(-x.astype(np.float64)))) < 2.5
    special = computed(define_logistic, np.array([0.0, -0.0, 1e30, INFINITE, -1e30, -INFINITE, NAN]))
    np.testing.assert_array_equal(special, [0.5, 0.5, 1, 1, 0, 0, NAN])


def test_rounding_to_bfloat16() -> None:
    """Of all upper halves: just below, at and just above the middle between two numbers, and what is none but for its last bit."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    numbers = np.concatenate([upper | lower for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    found = computed(None, numbers, "bfloat16")
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(jnp.bfloat16)
    lost = np.isnan(numbers)
    np.testing.assert_array_equal(found.view(np.uint16)[~lost], expected.view(np.uint16)[~lost])
    assert np.isnan(found[lost].astype(np.float32)).all()
