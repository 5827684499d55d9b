"""Norms, rotary turns and gates against their definitions in float64: by XLA, and by kernels of ours where there are any."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models import layers
from slipstream.models.cpu import packed, rows
from slipstream.models.numerics import EXACT, FAST, SAMPLING, Numerics, Program
from slipstream.models.spec import RopeSpec

MODES = (FAST, EXACT, SAMPLING)
EPS = 1e-5
UNIT = {"float32": 2.0**-23, "bfloat16": 2.0**-8}  # half the last place is at most this share of a number, and a little of float32's
needs_kernels = pytest.mark.skipif(not packed.available(), reason="no kernels of ours on this processor")


def drawn(*shape: int, dtype: str = "float32", scale: float = 1.0, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, dtype)


def wide(array: jax.Array) -> np.ndarray:
    return np.asarray(array, np.float64)


def same_bits(one: jax.Array, other: jax.Array) -> bool:
    return one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


# ---- definitions


def by_root_mean_square(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def gate_by_definition(gate: np.ndarray, up: np.ndarray, name: str) -> np.ndarray:
    if name == "silu":
        return gate / (1 + np.exp(-gate)) * up
    return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def turned(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Pairs (i, i + k/2) as complex numbers, x [n, h, k], angles [n, k/2]."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


# ---- against them


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("numerics", MODES)
def test_norms(numerics: Numerics, plus_one: bool, dtype: str) -> None:
    x, weight = drawn(21, 96, dtype=dtype, scale=3), drawn(96, dtype=dtype, seed=1)
    expected = by_root_mean_square(wide(x), wide(weight) + plus_one)
    roundings = 1 if plus_one else 2  # before the weight and after it
    np.testing.assert_allclose(
        wide(layers.rms_norm(x, weight, EPS, plus_one, numerics)), expected, rtol=(roundings + 0.05) * max(UNIT[dtype], 1e-6), atol=1e-9
    )


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("numerics", MODES)
def test_a_sum_and_its_norm_are_those_one_after_another(numerics: Numerics, dtype: str) -> None:
    x, y, weight = drawn(21, 96, dtype=dtype), drawn(21, 96, dtype=dtype, seed=2), drawn(96, dtype=dtype, seed=1)
    total, normed = layers.add_norm(x, y, weight, EPS, False, numerics)
    assert same_bits(total, x + y)
    assert same_bits(normed, layers.rms_norm(total, weight, EPS, False, numerics))


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("numerics", MODES)
def test_turns_are_rounded_once(numerics: Numerics, dtype: str) -> None:
    x, positions = drawn(19, 3, 32, dtype=dtype), jnp.arange(19) * 7
    cos, sin = layers.rope_tables(positions, 32, RopeSpec(theta=1e4), numerics)
    angles = wide(positions)[:, None] * layers.rope_frequencies(RopeSpec(theta=1e4), 32)
    found = wide(layers.rotate(x, cos, sin, numerics))
    np.testing.assert_allclose(found, turned(wide(x), angles), rtol=1.01 * UNIT[dtype], atol=2e-5)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("numerics", MODES)
def test_gates_of_bfloat16_are_rounded_once(numerics: Numerics, name: str) -> None:
    gate, up = drawn(64, 96, dtype="bfloat16", scale=4), drawn(64, 96, dtype="bfloat16", seed=1)
    found = layers.gated(gate, up, name, numerics)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(wide(found), gate_by_definition(wide(gate), wide(up), name), rtol=UNIT["bfloat16"] * 1.01, atol=3e-6)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("numerics", MODES)
def test_gates_of_float32(numerics: Numerics, name: str) -> None:
    gate, up = drawn(64, 96, scale=4), drawn(64, 96, seed=1)
    expected = gate_by_definition(wide(gate), wide(up), name)
    np.testing.assert_allclose(layers.gated(gate, up, name, numerics), expected, rtol=3e-5, atol=3e-6)  # 1 + tanh cancels


# ---- kernels


def kernels(dtype: str, count: int) -> dict[str, tuple[Callable[..., Any], tuple[jax.Array, ...], int]]:
    """Of each: the function of (*arrays, numerics), its arrays, and how many of them have a row a token."""
    weight = drawn(96, dtype=dtype, seed=7)
    x, y = (drawn(count, 96, dtype=dtype, seed=seed) for seed in (3, 4))
    tables = layers.rope_tables(jnp.arange(count) * 3, 32, RopeSpec(theta=1e4))
    return {
        "norm": (lambda x, weight, numerics: layers.rms_norm(x, weight, EPS, False, numerics), (x, weight), 1),
        "norm plus one": (lambda x, weight, numerics: layers.rms_norm(x, weight, EPS, True, numerics), (x, weight), 1),
        "sum and norm": (lambda x, y, weight, numerics: layers.add_norm(x, y, weight, EPS, False, numerics), (x, y, weight), 2),
        "turn": (layers.rotate, (x.reshape(count, 3, 32), *tables), 3),
        "silu": (lambda gate, up, numerics: layers.gated(gate, up, "silu", numerics), (x, y), 2),
        "gelu": (lambda gate, up, numerics: layers.gated(gate, up, "gelu_tanh", numerics), (x, y), 2),
    }


NAMES = tuple(kernels("float32", 2))


@needs_kernels
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_knows_nothing_of_the_others(name: str, dtype: str) -> None:
    """So many rows that threads share them, against a few: the same bits, those of fast numerics for samplers too."""
    made, arrays, of_rows = kernels(dtype, 3_000)[name]
    whole = jax.tree.leaves(made(*arrays, numerics=EXACT))
    for first, end in ((0, 1), (5, 22), (2_990, 3_000)):
        some = [array[first:end] if index < of_rows else array for index, array in enumerate(arrays)]
        for numerics in (EXACT, SAMPLING):
            for few, all_rows in zip(jax.tree.leaves(made(*some, numerics=numerics)), whole, strict=True):
                assert same_bits(few, all_rows[first:end]), (numerics, first)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_plain_function(name: str) -> None:
    made, arrays, _ = kernels("float32", 20)[name]

    def loss(numerics: Numerics, *arrays: jax.Array) -> jax.Array:
        return sum(jnp.sin(part).sum() for part in jax.tree.leaves(made(*arrays, numerics=numerics)))  # pyright: ignore[reportReturnType]

    places = tuple(range(1, 1 + len(arrays)))
    for found, expected in zip(*(jax.grad(loss, places)(numerics, *arrays) for numerics in (EXACT, FAST)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_stays_in_its_row(name: str) -> None:
    made, arrays, of_rows = kernels("bfloat16", 9)[name]
    lost = jax.tree.leaves(made(arrays[0].at[4].set(jnp.nan), *arrays[1:], numerics=EXACT))
    for part, sound in zip(lost, jax.tree.leaves(made(*arrays, numerics=EXACT)), strict=True):
        assert np.isnan(wide(part)[4]).all()
        assert same_bits(jnp.delete(part, 4, axis=0), jnp.delete(sound, 4, axis=0))
    assert of_rows


@needs_kernels
@pytest.mark.parametrize("dtype", UNIT)
def test_an_axis_that_kernels_do_not_take_is_xlas(dtype: str) -> None:
    """Of no whole number of vectors: the same mathematics, by sealed operations."""
    x, weight = drawn(7, 40, dtype=dtype), drawn(40, dtype=dtype, seed=1)
    assert not rows.fits(x)
    np.testing.assert_allclose(
        wide(layers.rms_norm(x, weight, EPS, False, EXACT)), by_root_mean_square(wide(x), wide(weight)), rtol=2.05 * UNIT[dtype] + 1e-6
    )


@needs_kernels
def test_kernels_are_asked_for() -> None:
    """In exact numerics and for samplers; not for a learner's fast numerics, which XLA splits among devices."""

    def norm(x: jax.Array, weight: jax.Array, *, numerics: Numerics) -> jax.Array:
        return layers.rms_norm(x, weight, EPS, False, numerics)

    program, arrays = Program(norm, static=()), (drawn(4, 96), drawn(96))
    for numerics, expected in ((EXACT, 1), (SAMPLING, 1), (FAST, 0)):
        assert program.lower(*arrays, numerics=numerics).as_text().count("slipstream_norm") == expected, numerics
