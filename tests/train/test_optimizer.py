"""One step of AdamW and of Muon against numpy by the papers' formulas; schedules by hand; the effective sample size."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slipstream.config.schema import OptimizerSection, WarmStage, WarmStartSection
from slipstream.models.parameters import Params, declarations, leaf
from slipstream.models.spec import ExpertSpec
from slipstream.train.optimizer import ess_factor, reinforcement_optimizer, reinforcement_schedule, warm_start_schedule
from tests.train.small import SPEC, params

MIXED = replace(SPEC, layers=2, tied=False, qkv_bias=True, experts=ExpertSpec(count=3, per_token=1, d_ff=24, normalise=True))
PATHS = [declaration.path for declaration in declarations(MIXED)]
SETTINGS = {"learning_rate": 0.01, "warmup_steps": 1, "b1": 0.8, "b2": 0.95, "weight_decay": 0.1, "clip_norm": 2.0}
VECTORS = {("final_norm",), *(("layers", name) for name in ("attention_norm", "mlp_norm", "q_bias", "k_bias", "v_bias"))}


def steps(config: OptimizerSection, count: int) -> dict[tuple[str, ...], np.ndarray]:
    """Weights after `count` steps on the gradients below."""
    start, step = compiled(config)
    weights, state = params(0, MIXED), start(params(0, MIXED))
    for number in range(count):
        weights, state = step(weights, state, gradient(number))
    return {path: np.asarray(leaf(weights, path)) for path in PATHS}


@cache
def compiled(config: OptimizerSection) -> tuple[Any, Any]:
    optimizer = reinforcement_optimizer(config, MIXED, reinforcement_schedule(config, 100))

    def step(weights: Any, state: optax.OptState, given: Any) -> tuple[Any, optax.OptState]:
        updates, state = optimizer.update(given, state, weights)
        return optax.apply_updates(weights, updates), state

    return jax.jit(optimizer.init), jax.jit(step)


def gradient(step: int) -> Params:
    """Of norm 10, so that a clip at 2 acts."""
    drawn = jax.tree.map(np.asarray, params(7 + step, MIXED))
    norm = np.sqrt(sum(float(np.square(array).sum()) for array in jax.tree.leaves(drawn)))
    return jax.tree.map(lambda array: array * np.float32(10 / norm), drawn)


def oracle(config: OptimizerSection, count: int) -> dict[tuple[str, ...], np.ndarray]:
    """The same in float64 by the formulas."""
    weights = {path: np.float64(leaf(params(0, MIXED), path)) for path in PATHS}
    first, second = ({path: np.zeros_like(value) for path, value in weights.items()} for _ in range(2))
    rise = config.warmup_steps + 1
    for step in range(count):
        rate = config.learning_rate * min(1, (step + 1) / rise)
        for path in weights:
            grad = np.float64(leaf(gradient(step), path)) * config.clip_norm / 10
            matrix = path[0] == "layers" and path not in VECTORS
            if config.name == "muon" and matrix:
                first[path] = config.muon_momentum * first[path] + (1 - config.muon_momentum) * grad
                ahead = config.muon_momentum * first[path] / (1 - config.muon_momentum ** (step + 2))
                move = muon_direction(ahead + (1 - config.muon_momentum) * grad / (1 - config.muon_momentum ** (step + 1)), path[-1])
            else:
                first[path] = config.b1 * first[path] + (1 - config.b1) * grad
                second[path] = config.b2 * second[path] + (1 - config.b2) * grad**2
                move = first[path] / (1 - config.b1 ** (step + 1)) / (np.sqrt(second[path] / (1 - config.b2 ** (step + 1))) + 1e-8)
            decay = 0.0 if path in VECTORS else config.weight_decay
            weights[path] = weights[path] - rate * (move + decay * weights[path])
    return weights


def matrices(array: np.ndarray, name: str) -> np.ndarray:
    """[matrices, inputs, outputs] of a stacked parameter."""
    inputs = {"o": 2}.get(name, 1)  # axes applied to, after the stacked ones
    stacked = array.ndim - {"q": 3, "k": 3, "v": 3, "o": 3}.get(name, 2)
    shape = array.shape[:stacked], array.shape[stacked : stacked + inputs], array.shape[stacked + inputs :]
    return array.reshape([int(np.prod(part)) for part in shape])


def muon_direction(array: np.ndarray, name: str) -> np.ndarray:
    """Five quintic Newton-Schulz iterations on each matrix over its norm, times 0.2 sqrt(max(inputs, outputs))."""
    found = []
    for matrix in matrices(array, name):
        x = matrix / np.linalg.norm(matrix)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        found.append(0.2 * np.sqrt(max(matrix.shape)) * x)
    return np.reshape(found, array.shape)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_two_steps_are_those_of_the_formulas(name: str) -> None:
    """Decay reaches matrices alone, the clip all, and Muon the matrices of the layers, each expert's by itself."""
    config = OptimizerSection.model_validate(SETTINGS | {"name": name})
    found, expected = steps(config, 2), oracle(config, 2)
    for path in PATHS:
        np.testing.assert_allclose(found[path], expected[path], rtol=0, atol=3e-6, err_msg=".".join(path))


def test_a_muon_step_is_near_the_polar_factor() -> None:
    """Of the gradient's matrices: the same singular vectors, and all values between 0.5 and 1.3 (Jordan: 0.7 to 1.2 but near zero)."""
    found = steps(OptimizerSection.model_validate(SETTINGS | {"name": "muon"}), 1)
    for name in ("q", "k", "o", "gate", "down"):
        path = ("layers", name)
        before = np.asarray(leaf(params(0, MIXED), path))
        moved = matrices((before - found[path]) / 0.005 - 0.1 * before, name)  # half the rate in the warm-up; without the decay
        for step, given in zip(moved, matrices(np.asarray(leaf(gradient(0), path)), name), strict=True):
            u, _, v = np.linalg.svd(given, full_matrices=False)
            sizes = u.T @ (step / 0.2 / np.sqrt(max(given.shape))) @ v.T
            assert np.abs(sizes - np.diag(np.diag(sizes))).max() < 0.01
            assert 0.5 < np.diag(sizes).min() < np.diag(sizes).max() < 1.3
            assert abs(np.median(np.diag(sizes)) - 1) < 0.25


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_first_moment_may_be_kept_in_bfloat16(name: str) -> None:
    """Adam's first moment and Muon's momentum take half the bytes; the second moment stays as it is."""
    configs = [OptimizerSection.model_validate({"name": name, "first_moment": kind}) for kind in ("bf16", "f32")]
    half, full = (nbytes(jax.eval_shape(reinforcement_optimizer(one, SPEC, lambda _: 1.0).init, params(0, SPEC))) for one in configs)
    assert full - half == 2 * sum(array.size for array in jax.tree.leaves(params(0, SPEC)))


def nbytes(tree: object) -> int:
    return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(tree))


def test_reinforcement_schedules() -> None:
    """Linear from lr / (n + 1), step 0 already moves; then constant, or a fall whose end is the run's last update."""
    settings = {"learning_rate": 0.6, "warmup_steps": 5}
    flat = reinforcement_schedule(OptimizerSection(**settings), 100)
    assert [float(flat(step)) for step in (0, 1, 4, 5, 6, 1000)] == pytest.approx([0.1, 0.2, 0.5, 0.6, 0.6, 0.6])
    assert float(reinforcement_schedule(OptimizerSection(learning_rate=0.6, warmup_steps=0), 100)(0)) == pytest.approx(0.6)
    falling = OptimizerSection(**settings, schedule="linear", final_fraction=0.5)
    linear = reinforcement_schedule(falling, 26)
    assert [float(linear(step)) for step in (0, 4, 5, 15, 25, 30)] == pytest.approx([0.1, 0.5, 0.6, 0.45, 0.3, 0.3])
    cosine = reinforcement_schedule(falling.model_copy(update={"schedule": "cosine", "final_fraction": 0.0}), 26)
    expected = [0.1, 0.5, 0.6, 0.3 * (1 + np.cos(np.pi / 4)), 0.3, 0.0, 0.0]
    assert [float(cosine(step)) for step in (0, 4, 5, 10, 15, 25, 30)] == pytest.approx(expected, abs=1e-7)


def test_warm_start_schedule() -> None:
    """Linear to the peak, then a cosine that reaches a tenth of it after the last stage."""
    stages = (WarmStage(steps=20, worked_share=1.0), WarmStage(steps=10, worked_share=0.2))
    schedule = warm_start_schedule(WarmStartSection(stages=stages, learning_rate=0.5, warmup_steps=10))
    assert [float(schedule(step)) for step in (0, 10, 20, 30, 31)] == pytest.approx([0.5 / 11, 0.5, 0.275, 0.05, 0.05])
    short = warm_start_schedule(WarmStartSection(stages=stages[1:], learning_rate=0.5, warmup_steps=50))
    assert [float(short(step)) for step in (0, 9)] == pytest.approx([0.5 / 51, 5 / 51])
    assert np.isfinite(float(warm_start_schedule(WarmStartSection(warmup_steps=0))(0)))


def test_effective_sample_size() -> None:
    """(sum r)^2 / (n sum r^2) over masked tokens, however large the ratios; 1 for equal ones, 1 / n for a single one that counts."""
    rng = np.random.default_rng(0)
    logs, masks = [rng.normal(size=(2, 5)), rng.normal(size=(3, 4))], [rng.random((2, 5)) < 0.7, rng.random((3, 4)) < 0.7]
    ratio = np.exp(np.concatenate([values[mask] for values, mask in zip(logs, masks, strict=True)]))
    expected = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())

    def found(logs: list[np.ndarray], power: float) -> float:
        return float(jitted([jnp.asarray(values) for values in logs], [jnp.asarray(mask) for mask in masks], power))

    jitted = jax.jit(ess_factor)

    assert found(logs, 1.0) == pytest.approx(expected, rel=1e-5)
    assert found(logs, 0.5) == pytest.approx(expected**0.5, rel=1e-5)
    assert found([values + 500 for values in logs], 1.0) == pytest.approx(expected, rel=1e-3)
    assert found([np.full((2, 5), 3.0), np.full((3, 4), 3.0)], 1.0) == pytest.approx(1.0)
    one = [np.zeros((2, 5)), np.zeros((3, 4))]
    one[0][tuple(np.argwhere(masks[0])[0])] = 60.0
    assert found(one, 1.0) == pytest.approx(1 / len(ratio), rel=1e-5)
    assert float(ess_factor([jnp.ones(3)], [jnp.zeros(3, bool)], 0.5)) == 1.0
