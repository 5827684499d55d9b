"""The figures of a step, by hand and against plain loops."""

import math

import numpy as np
import pytest

from slipstream.train.statistics import TokenTable, step_statistics


def table(ratios: list[float], **columns: list[float]) -> TokenTable:
    n = len(ratios)
    found = {"entropy": [1.0] * n, "loss": [0.0] * n, "limited": [0.0] * n} | columns
    return TokenTable(
        current=np.array([math.log(ratio) - 2.0 for ratio in ratios], np.float32),
        behaviour=np.full(n, -2.0, np.float32),
        **{name: np.array(values, np.float32) for name, values in found.items()},
    )


def test_by_hand() -> None:
    found = step_statistics(table([1.0, 3.0], entropy=[0.5, 1.5], loss=[2.0, 4.0], limited=[0.0, 1.0]), denominator=10)
    assert found == pytest.approx(
        {
            "loss": 0.6,
            "entropy": 1.0,
            "ratio_mean": 2.0,
            "ratio_std": 1.0,
            "ratio_p99": 2.98,
            "ess": 16 / (2 * 10),
            "clip_fraction": 0.5,
        },
        rel=1e-5,
    )


def test_equal_ratios_have_full_effective_sample_size() -> None:
    assert step_statistics(table([2.0] * 7), 7)["ess"] == pytest.approx(1.0)
    assert step_statistics(table([1e-6] * 9 + [1.0]), 10)["ess"] == pytest.approx(0.1, rel=1e-4)


def test_against_loops() -> None:
    rng = np.random.default_rng(0)
    ratios = np.exp(rng.normal(size=500)).tolist()
    found = step_statistics(table(ratios), 500)
    mean = sum(ratios) / 500
    assert found["ratio_mean"] == pytest.approx(mean, rel=1e-5)
    assert found["ratio_std"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in ratios) / 500), rel=1e-5)
    assert found["ratio_p99"] == pytest.approx(sorted(ratios)[494] + 0.01 * (sorted(ratios)[495] - sorted(ratios)[494]), rel=1e-4)
    assert found["ess"] == pytest.approx(sum(ratios) ** 2 / (500 * sum(r * r for r in ratios)), rel=1e-5)


def test_no_tokens() -> None:
    found = step_statistics(table([]), 5)
    assert found["loss"] == 0.0
    assert {name for name, value in found.items() if math.isnan(value)} == {
        *("entropy", "ratio_mean", "ratio_std", "ratio_p99", "ess", "clip_fraction")
    }
    assert found.keys() == step_statistics(table([1.0]), 5).keys()


def test_absurd_log_probs_are_shown_not_warned_about() -> None:
    tokens = table([1.0, 1.0])
    tokens.behaviour[1] = -1e4
    found = step_statistics(tokens, 2)
    assert found["ratio_mean"] == math.inf
    assert found["loss"] == 0.0
