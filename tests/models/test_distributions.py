"""Logits made log-probs, and shares of blocks, by kernels of ours: against their definitions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.engine.sampling import draw
from slipstream.models.cpu import packed, rows
from slipstream.models.cpu.softmax import LANES, RUN
from slipstream.models.logprobs import VocabularyRule, log_distribution
from slipstream.models.numerics import EXACT, FAST, SAMPLING

pytestmark = pytest.mark.skipif(not packed.available(), reason="no kernels of ours on this processor")
VOCABULARY = 3 * LANES * RUN + 5 * LANES  # sums of three whole runs and of part of one


def drawn(n: int, v: int = VOCABULARY, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, v)) * 4, jnp.float32)


def defined(logits: jax.Array, temperature: np.ndarray, known: int) -> tuple[np.ndarray, np.ndarray]:
    scaled = np.asarray(logits, np.float64)[:, :known] / temperature[:, None]
    total = np.log(np.exp(scaled - scaled.max(1, keepdims=True)).sum(1, keepdims=True)) + scaled.max(1, keepdims=True)
    return scaled - total, total


@pytest.mark.parametrize("known", [VOCABULARY, VOCABULARY - 21, 1])
def test_log_probs_are_the_definition(known: int) -> None:
    logits, temperature = drawn(9), np.linspace(0.3, 2, 9).astype(np.float32)
    found, total = rows.log_softmax(logits, jnp.asarray(temperature)[:, None], known)
    expected, expected_total = defined(logits, temperature.astype(np.float64), known)
    np.testing.assert_allclose(found[:, :known], expected, rtol=3e-7, atol=4e-6)
    np.testing.assert_allclose(total, expected_total, rtol=3e-7, atol=4e-6)
    assert (np.asarray(found)[:, known:] < -1e29).all()


def test_they_are_xlas_but_for_rounding() -> None:
    logits, rule = drawn(4), VocabularyRule(known=VOCABULARY - 3)
    by_xla = log_distribution(logits, 0.7, rule, FAST)
    for numerics in (EXACT, SAMPLING):
        np.testing.assert_allclose(log_distribution(logits, 0.7, rule, numerics), by_xla, rtol=1e-6, atol=4e-6)


def test_a_row_knows_nothing_of_the_others() -> None:
    logits = drawn(70)
    whole, totals = rows.log_softmax(logits, 1.0, None)
    shares = rows.block_shares(whole, VOCABULARY // LANES)
    for first, end in ((0, 1), (3, 20), (69, 70)):
        some, total = rows.log_softmax(logits[first:end], jnp.ones((end - first, 1)), None)
        for one, other in ((some, whole), (total, totals), (rows.block_shares(some, VOCABULARY // LANES), shares)):
            assert np.array_equal(np.asarray(one).view(np.int32), np.asarray(other)[first:end].view(np.int32))


def test_impossible_tokens_and_what_is_no_number() -> None:
    """A logit of minus infinity has no probability; a row with NaN is lost, all of it, and no other."""
    logits = drawn(3).at[0, 7].set(-jnp.inf).at[1, 9].set(jnp.nan)
    found = np.asarray(rows.log_softmax(logits, 1.0, None)[0])
    assert found[0, 7] == -np.inf
    np.testing.assert_allclose(np.exp(found[[0, 2]].astype(np.float64)).sum(1), 1, rtol=1e-5)
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("width", [1, 3, LANES, LANES + 1])
def test_shares_of_blocks_are_sums_of_probabilities(width: int) -> None:
    """Blocks of every w-th id, where w fills vectors and where it does not."""
    log_probs = rows.log_softmax(drawn(5, 16 * 3 * (LANES + 1)), 1.0, None)[0]
    expected = np.exp(np.asarray(log_probs, np.float64)).reshape(5, -1, width).sum(1)
    np.testing.assert_allclose(rows.block_shares(log_probs, width), expected, rtol=3e-5)


@pytest.mark.parametrize("v", [96, 594 * 256 - 16, 49_152])
def test_the_same_tokens_are_drawn_by_xla(v: int) -> None:
    """But for those whose share ends within a rounding of the number drawn."""
    log_probs = rows.log_softmax(drawn(64, v), 1.0, None)[0]
    key, positions = jnp.arange(128, dtype=jnp.uint32).reshape(64, 2), jnp.arange(64)
    assert (draw(log_probs, key, positions, SAMPLING) == draw(log_probs, key, positions, FAST)).sum() >= 63
