"""The feed-forward's gate against its definition in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models.layers import activate, gated
from slipstream.models.numerics import EXACT, FAST


def defined(gate: np.ndarray, up: np.ndarray, name: str) -> np.ndarray:
    if name == "silu":
        return gate / (1 + np.exp(-gate)) * up
    return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def drawn(dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    gate, up = (jnp.asarray(rng.normal(size=(64, 96)) * scale, dtype) for scale in (4, 1))
    return gate, up


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_fast_numerics_of_bfloat16_round_once(name: str) -> None:
    """Half a unit in the last place (2^-8 of the value) and the little that float32 adds; products of exact numerics round often."""
    gate, up = drawn("bfloat16")
    expected = defined(np.asarray(gate, np.float64), np.asarray(up, np.float64), name)
    found = gated(gate, up, name, FAST)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2.0**-8 * 1.01, atol=1e-6)
    exact = np.asarray(gated(gate, up, name, EXACT), np.float64)
    np.testing.assert_allclose(exact, expected, rtol=0.05, atol=0.05)
    assert np.abs(exact - expected).sum() > 1.1 * np.abs(np.asarray(found, np.float64) - expected).sum()


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_float32_is_the_definition(name: str) -> None:
    gate, up = drawn("float32")
    expected = defined(np.asarray(gate, np.float64), np.asarray(up, np.float64), name)
    for numerics in (FAST, EXACT):
        np.testing.assert_allclose(gated(gate, up, name, numerics), expected, rtol=3e-5, atol=1e-6)
    assert np.array_equal(gated(gate, up, name, EXACT), activate(gate, name, EXACT) * up)
