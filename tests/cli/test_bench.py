"""The staleness benchmark's thresholds see what they are for: a broken correction, and a test that could not fail."""

from typing import Any

from slipstream.cli.bench.staleness import failed_thresholds


def row(v10: float, pass_at_1: float) -> dict[str, Any]:
    return {"greedy": {"5": 0.9, "10": v10, "20": 0.9, "40": 0.95}, "pass@1": pass_at_1}


def figures(**changed: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """The shape that was measured, with some rows changed."""
    measured = {
        "ppo_0": row(0.93, 0.7),
        "reinforce_is_0": row(0.93, 0.7),
        "decoupled_ppo_0": row(0.93, 0.7),
        "ppo_16": row(0.0, 0.6),
        "reinforce_is_16": row(0.92, 0.7),
        "decoupled_ppo_16": row(0.92, 0.7),
    } | changed
    return {(name.rpartition("_")[0], int(name.rpartition("_")[2])): value for name, value in measured.items()}


def test_the_measured_shape_passes() -> None:
    assert failed_thresholds(figures()) == []


def test_a_correction_that_stalls_is_seen() -> None:
    (failure,) = failed_thresholds(figures(decoupled_ppo_16=row(0.1, 0.7)))
    assert failure.startswith("decoupled_ppo at lag 16: greedy at version 10 is 0.100, against 0.930")


def test_a_correction_that_drifts_is_seen() -> None:
    (failure,) = failed_thresholds(figures(reinforce_is_16=row(0.9, 0.3)))
    assert failure.startswith("reinforce_is at lag 16: pass@1 at version 40 is 0.300, against 0.700")


def test_naive_ppo_must_stall() -> None:
    (failure,) = failed_thresholds(figures(ppo_16=row(0.9, 0.6)))
    assert "should stall" in failure


def test_decoupled_and_naive_ppo_are_one_loss_on_fresh_data() -> None:
    (failure,) = failed_thresholds(figures(decoupled_ppo_0=row(0.94, 0.7)))
    assert "differ at lag 0" in failure


def test_a_task_that_is_not_learnt_at_all_is_seen() -> None:
    flat = {"greedy": {"5": 0.1, "10": 0.1, "20": 0.1, "40": 0.1}, "pass@1": 0.1}
    (failure,) = failed_thresholds(figures(ppo_0=flat, decoupled_ppo_0=flat))
    assert failure.startswith("decoupled_ppo at lag 0: greedy 0.100 at version 40")
