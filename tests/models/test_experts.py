"""A mixture of experts against loops over tokens and experts, and against a dense formulation that computes every expert."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.models import grouped
from slipstream.models.experts import mixture, route
from slipstream.models.grouped import BLOCK, grouped_blocks
from slipstream.models.quant import quantise
from slipstream.models.spec import ExpertSpec
from slipstream.models.weight import Quantised

ROWS, WIDTH, EXPERTS, INNER = 37, 6, 5, 7  # no multiple of a block, nor of each other
SPEC = ExpertSpec(count=EXPERTS, per_token=2, d_ff=INNER, normalise=True)
RAW = ExpertSpec(count=EXPERTS, per_token=3, d_ff=INNER, normalise=False)
Matrices = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def drawn(rows: int = ROWS, favourite: int | None = None, seed: int = 0) -> Matrices:
    """x, router, gate, up, down; rows that all go first to the favourite expert where there is one."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, WIDTH), (WIDTH, EXPERTS), (EXPERTS, WIDTH, INNER), (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH))
    x, router, gate, up, down = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    if favourite is not None:
        x, router = np.abs(x), -np.abs(router)
        router[:, favourite] = 0.2
    return x, router, gate, up, down


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def oracle(x, router, gate, up, down, spec: ExpertSpec, activation: str = "silu") -> tuple[np.ndarray, np.ndarray]:
    """The mixture and each expert's visits by each row [n, e], token by token and expert by expert in float64."""
    x, router, gate, up, down = (np.asarray(array, np.float64) for array in (x, router, gate, up, down))
    mixed, visits = np.zeros_like(x), np.zeros((len(x), spec.count))
    for row, token in enumerate(x):
        probabilities = softmax(token @ router)
        chosen = sorted(range(spec.count), key=lambda expert: (-probabilities[expert], expert))[: spec.per_token]
        share = probabilities[chosen].sum() if spec.normalise else 1.0
        for expert in chosen:
            gated = token @ gate[expert]
            if activation == "silu":
                gated = gated / (1 + np.exp(-gated))
            else:
                gated = gated / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gated + 0.044715 * gated**3)))
            mixed[row] += probabilities[expert] / share * ((gated * (token @ up[expert])) @ down[expert])
            visits[row, expert] += 1
    return mixed, visits


CASES = {
    "normalised": (drawn(), SPEC, "silu"),
    "the last has the most": (drawn(favourite=4), SPEC, "silu"),
    "raw weights": (drawn(), RAW, "gelu_tanh"),
    "one expert takes all": (drawn(favourite=3), ExpertSpec(count=EXPERTS, per_token=1, d_ff=INNER, normalise=False), "silu"),
    "one row visits every expert": (drawn(rows=1), ExpertSpec(count=EXPERTS, per_token=EXPERTS, d_ff=INNER, normalise=True), "silu"),
}
run = jax.jit(mixture, static_argnums=(5, 6))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_mixture_is_the_definition(case) -> None:
    matrices, spec, activation = case
    counted = np.arange(len(matrices[0])) % 3 != 1
    found, load = run(*matrices, spec, activation, counted)
    expected, visits = oracle(*matrices, spec, activation)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(load, visits[counted].sum(axis=0))


def test_without_a_choice_all_rows_count() -> None:
    matrices, spec, activation = CASES["normalised"]
    np.testing.assert_array_equal(run(*matrices, spec, activation, None)[1], oracle(*matrices, spec)[1].sum(axis=0))


def test_the_cases_have_experts_without_rows_and_one_with_all() -> None:
    """That the cases above are what their names say."""
    matrices, spec, _ = CASES["one expert takes all"]
    np.testing.assert_array_equal(oracle(*matrices, spec)[1].sum(axis=0), [0, 0, 0, ROWS, 0])


def test_routes_are_the_best_experts_in_order_and_ties_go_to_the_first() -> None:
    """By hand: logits of two rows are read off the router; the third row's are all equal."""
    router = np.log(np.array([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25], [0.3, 0.1, 0.3, 0.3]], np.float32))
    chosen, weights = route(jnp.eye(3), jnp.asarray(router), ExpertSpec(count=4, per_token=2, d_ff=1, normalise=False))
    np.testing.assert_array_equal(chosen, [[1, 3], [0, 1], [0, 2]])
    np.testing.assert_allclose(weights, [[0.4, 0.3], [0.25, 0.25], [0.3, 0.3]], rtol=1e-6)
    assert weights.dtype == jnp.float32
    _, normalised = route(jnp.eye(3), jnp.asarray(router), ExpertSpec(count=4, per_token=2, d_ff=1, normalise=True))
    np.testing.assert_allclose(normalised, [[4 / 7, 3 / 7], [0.5, 0.5], [0.5, 0.5]], rtol=1e-6)


def test_bfloat16_rows_are_routed_in_float32() -> None:
    """Softmax and normalisation of rounded logits happen in 32 bits: weights sum to one far more closely than 8 bits could."""
    matrices = [jnp.asarray(array, jnp.bfloat16) for array in drawn()]
    _, weights = route(matrices[0], matrices[1], SPEC)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-6)
    found, load = jax.eval_shape(lambda: mixture(*matrices, SPEC, "silu", None))
    assert found.dtype == jnp.bfloat16
    assert load.dtype == jnp.float32


def every_expert(x, router, gate, up, down, spec: ExpertSpec) -> jax.Array:
    """The same mixture as autodiff can see through it: all experts for all rows, weighted by zero where not chosen."""
    probabilities = jax.nn.softmax(x @ router)
    chosen = jnp.argsort(-probabilities, axis=-1, stable=True)[:, : spec.per_token]
    mask = jax.nn.one_hot(chosen, spec.count).sum(axis=1)
    weights = probabilities * mask
    if spec.normalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    inner = jax.nn.silu(jnp.einsum("nd,edf->nef", x, gate)) * jnp.einsum("nd,edf->nef", x, up)
    return jnp.einsum("nef,efd,ne->nd", inner, down, weights)


COTANGENT = np.random.default_rng(9).normal(size=(ROWS, WIDTH)).astype(np.float32)


@cache
def dense_gradients(name: str) -> tuple[jax.Array, ...]:
    matrices, spec, _ = CASES[name]
    return jax.jit(jax.grad(lambda *matrices: jnp.sum(every_expert(*matrices, spec) * COTANGENT), range(5)))(*matrices)


@pytest.mark.parametrize(("name", "backend"), [("normalised", "cpu"), ("one expert takes all", "cpu"), ("normalised", "tpu")])
def test_gradients_are_those_of_computing_every_expert(monkeypatch: pytest.MonkeyPatch, name: str, backend: str) -> None:
    """By the rows, the router and all three matrices; an expert without rows has a gradient of exactly zero.

    With another device's name, the way through `ragged_dot` that CPU never takes.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    matrices, spec, _ = CASES[name]
    found = jax.jit(jax.grad(lambda *matrices: jnp.sum(mixture(*matrices, spec, "silu", None)[0] * COTANGENT), range(5)))(*matrices)
    for what, ours, theirs in zip(("x", "router", "gate", "up", "down"), found, dense_gradients(name), strict=True):
        largest = np.abs(np.asarray(theirs)).max()
        assert largest > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6 * largest, err_msg=what)
    unvisited = oracle(*matrices, spec)[1].sum(axis=0) == 0
    for ours in found[2:]:
        np.testing.assert_array_equal(np.asarray(ours)[unvisited], 0)


SIZES = {
    "uneven": [1, 0, 30, 5, 0, 1],
    "one has all": [0, 0, 37, 0, 0, 0],
    "the last has all": [0, 0, 0, 0, 0, 37],
    "a row each": [1, 1, 1, 1, 1, 32],
    "whole blocks": [16, 0, 16, 0, 0, 16],
    "fewer rows than groups": [0, 1, 0, 0, 1, 0],
}


@partial(jax.jit, static_argnums=0)
def product_and_gradients(product, x, weight, cotangent, sizes):
    mixed, pullback = jax.vjp(lambda x, weight: product(x, weight, sizes), x, weight)
    return mixed, *pullback(cotangent)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_blocks_are_the_ragged_product(sizes: list[int]) -> None:
    """Values and gradients are those of `ragged_dot`, and of a loop over rows."""
    rng = np.random.default_rng(0)
    rows = sum(sizes)
    x, weight, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, 6), (6, 6, 9), (rows, 9)))
    groups = np.repeat(np.arange(6), sizes)

    found, expected = (
        product_and_gradients(product, x, weight, cotangent, jnp.asarray(sizes)) for product in (grouped_blocks, jax.lax.ragged_dot)
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    by_row = np.stack([row @ weight[group].astype(np.float64) for row, group in zip(x, groups, strict=True)])
    np.testing.assert_allclose(found[0], by_row, rtol=0, atol=5e-6)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_no_more_blocks_are_computed_than_rows_need(sizes: list[int]) -> None:
    """Each group's rows rounded up to whole blocks, which is less than rows / BLOCK + one for each group that has a row."""
    rows = sum(sizes)
    laid = jax.jit(grouped._lay_out, static_argnums=1)(jnp.asarray(sizes, jnp.int32), rows)
    used = np.asarray(laid.used)
    assert used.sum() == sum(-(-size // BLOCK) for size in sizes)
    assert len(used) <= rows // BLOCK + min(len(sizes), rows)
    np.testing.assert_array_equal(np.asarray(laid.group)[used], np.repeat(np.arange(6), [-(-size // BLOCK) for size in sizes]))
    places = np.asarray(laid.place)
    assert len(set(places.tolist())) == rows
    np.testing.assert_array_equal(np.asarray(laid.group)[places // BLOCK], np.repeat(np.arange(6), sizes))


def test_unused_blocks_are_skipped_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the seven blocks that 49 rows of four groups may need, these sizes need four: so many products run, each way."""
    taken: list[bool] = []
    cond = jax.lax.cond

    def counting(chosen, *branches):
        jax.debug.callback(lambda value: taken.append(bool(value)), chosen)
        return cond(chosen, *branches)

    monkeypatch.setattr(jax.lax, "cond", counting)
    x, weight = jnp.ones((49, 4)), jnp.ones((4, 4, 5))
    product, pullback = jax.vjp(lambda x, weight: grouped_blocks(x, weight, jnp.asarray([0, 17, 0, 32])), x, weight)
    jax.effects_barrier()
    assert (len(taken), sum(taken)) == (7, 4)
    pullback(product)
    jax.effects_barrier()
    assert (len(taken), sum(taken)) == (14, 8)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_quantised_experts(precision) -> None:
    """A mixture of eight-bit experts is that of their widened values."""
    matrices = drawn()
    eight = [quantise(jnp.asarray(matrix), (1,), precision) for matrix in matrices[2:]]
    wide = [np.asarray(matrix.stored.astype(jnp.float32)) * np.asarray(matrix.scale)[:, None, :] for matrix in eight]
    assert all(isinstance(matrix, Quantised) and matrix.scale.shape == (EXPERTS, matrix.shape[2]) for matrix in eight)
    mixed, _ = run(*matrices[:2], *eight, SPEC, "silu", None)
    expected, _ = oracle(*matrices[:2], *wide, SPEC)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_a_gradient_goes_through_quantised_experts() -> None:
    """By the rows, as a frozen base needs it: that of the widened matrices."""
    x, router, *matrices = drawn()
    eight = [quantise(jnp.asarray(matrix), (1,), "int8") for matrix in matrices]
    wide = [matrix.stored.astype(jnp.float32) * matrix.scale[:, None, :] for matrix in eight]
    found = jax.jit(jax.grad(lambda x: jnp.sum(mixture(x, jnp.asarray(router), *eight, SPEC, "silu", None)[0] * COTANGENT)))(x)
    expected = jax.jit(jax.grad(lambda x: jnp.sum(every_expert(x, router, *wide, SPEC) * COTANGENT)))(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * np.abs(np.asarray(expected)).max())
