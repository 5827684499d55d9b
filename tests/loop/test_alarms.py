"""Alarms are raised once by what lasts, not by noise; a slow rise is not too good, a jump is."""

import numpy as np
import pytest

from slipstream.loop.alarms import Score, drift, raised, share_right, too_good, windowed


def held_out(*values: float, every: int = 10, answers: int = 256) -> list[Score]:
    return [share_right(every * index, value, answers) for index, value in enumerate(values)]


def alarms(scores: list[Score]) -> list[str]:
    return [sentence for count in range(1, len(scores) + 1) for sentence in raised("held-out score", scores[:count])]


def test_a_fall_that_lasts_is_told_once_with_its_peak() -> None:
    (sentence,) = alarms(held_out(0.1, 0.5, 0.8, 0.6, 0.6, 0.6, 0.55, 0.5))
    assert sentence == "held-out score drifts: 0.600, 0.600, 0.600 at steps 30 to 50, after 0.800 at step 20"


@pytest.mark.parametrize("values", [(0.8, 0.6, 0.6), (0.8, 0.6, 0.79, 0.6, 0.79), (0.8, 0.78, 0.77, 0.76), (0.1, 0.4, 0.9)])
def test_what_does_not_last_or_is_within_the_noise_is_no_drift(values: tuple[float, ...]) -> None:
    assert drift(held_out(*values)) is None


def test_few_answers_need_a_deeper_fall() -> None:
    assert drift(held_out(0.8, 0.65, 0.65, 0.65, answers=30)) is None
    assert drift(held_out(0.8, 0.65, 0.65, 0.65, answers=500)) is not None


def test_a_steady_run_seldom_alarms() -> None:
    rng = np.random.default_rng(0)
    runs = [held_out(*(rng.binomial(256, 0.6, 20) / 256)) for _ in range(200)]
    assert sum(bool(alarms(run)) for run in runs) <= 30  # the best of many is lucky, so a few percent are below it for a while


def test_a_perfect_score_can_still_drift() -> None:
    assert drift(held_out(1.0, 0.9, 0.9, 0.9)) is not None


def test_a_jump_to_the_top_is_too_good_and_a_rise_is_not() -> None:
    (sentence,) = alarms(held_out(0.2, 0.3, 0.97, 0.98, every=2))
    assert "from 0.300 at step 2 to 0.970 at step 4; look for a leak" in sentence
    assert too_good(held_out(0.2, 0.45, 0.7, 0.9, 0.97, every=2)) is None
    assert too_good(held_out(0.2, 0.97, every=10)) is None


def test_rewards_of_another_scale_are_not_judged() -> None:
    assert too_good([Score(step=0, value=0.0, error=0.1), Score(step=1, value=3.0, error=0.1)]) is None


def test_training_is_looked_at_in_windows_with_their_own_spread() -> None:
    rng = np.random.default_rng(1)
    steady = [Score(step=step, value=value, error=0.0) for step, value in enumerate(rng.normal(0.6, 0.05, 205))]
    windows = windowed(steady)
    assert len(windows) == 20
    assert windows[1].step == 19
    assert windows[0].value == pytest.approx(np.mean([score.value for score in steady[:10]]))
    assert windows[0].error == pytest.approx(np.std([score.value for score in steady[:10]], ddof=1) / 10**0.5)
    assert drift(windows) is None
    fallen = [*steady, *(Score(step=205 + step, value=0.4, error=0.0) for step in range(35))]
    assert drift(windowed(fallen)) is not None
