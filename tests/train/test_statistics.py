"""The figures of a step, by hand and against plain loops."""

import math

import numpy as np
import pytest

from slipstream.train.statistics import TokenTable, joined, step_statistics


def table(ratios: list[float], **columns: list[float]) -> TokenTable:
    n = len(ratios)
    current = np.array([math.log(ratio) - 2.0 for ratio in ratios], np.float32)
    found = {"entropy": [1.0] * n, "clipped": [0.0] * n, "masked": [0.0] * n, "start": current, "reference": [math.nan] * n} | columns
    return TokenTable(
        current=current,
        behaviour=np.full(n, -2.0, np.float32),
        **{name: np.array(values, np.float32) for name, values in found.items()},
    )


def test_by_hand() -> None:
    """Start and reference are known of the first token only: log-probs -2 (now), -2.5 and -2.25."""
    known = {"start": [-2.5, math.nan], "reference": [-2.25, math.nan]}
    found = step_statistics(table([1.0, 3.0], entropy=[0.5, 1.5], clipped=[0.0, 1.0], masked=[0.0, 0.0], **known))
    assert found == pytest.approx(
        {
            "entropy": 1.0,
            "nll": 2.0 - math.log(3) / 2,
            "ratio_mean": 2.0,
            "ratio_std": 1.0,
            "ratio_p99": 2.98,
            "ess": 16 / (2 * 10),
            "clip_fraction": 0.5,
            "mask_fraction": 0.0,
            "offpolicy": 0.5,
            "offpolicy_update": 0.5,
            "kl": math.exp(-0.25) - 1 + 0.25,
        },
        rel=1e-5,
    )


def test_equal_ratios_have_full_effective_sample_size() -> None:
    assert step_statistics(table([2.0] * 7))["ess"] == pytest.approx(1.0)
    assert step_statistics(table([1e-6] * 9 + [1.0]))["ess"] == pytest.approx(0.1, rel=1e-4)


def test_against_loops() -> None:
    rng = np.random.default_rng(0)
    ratios = np.exp(rng.normal(size=500)).tolist()
    found = step_statistics(table(ratios))
    mean = sum(ratios) / 500
    assert found["ratio_mean"] == pytest.approx(mean, rel=1e-5)
    assert found["ratio_std"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in ratios) / 500), rel=1e-5)
    assert found["ratio_p99"] == pytest.approx(sorted(ratios)[494] + 0.01 * (sorted(ratios)[495] - sorted(ratios)[494]), rel=1e-4)
    assert found["ess"] == pytest.approx(sum(ratios) ** 2 / (500 * sum(r * r for r in ratios)), rel=1e-5)


def test_no_tokens() -> None:
    found = step_statistics(joined([]))
    assert all(math.isnan(value) for value in found.values())
    assert found.keys() == step_statistics(table([1.0])).keys()


def test_absurd_log_probs_are_shown_not_warned_about() -> None:
    tokens = table([1.0, 1.0])
    tokens.behaviour[1] = -1e4
    assert step_statistics(tokens)["ratio_mean"] == math.inf
