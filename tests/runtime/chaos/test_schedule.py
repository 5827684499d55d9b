"""Schedules of faults: the same for the same seed, and fair."""

from collections import Counter

import pytest

from slipstream.runtime.chaos.faults import Fault, FaultKind, schedule


def drawn(seed: int, faults: int, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> list[Fault]:
    return schedule(seed, faults, steps=5 * faults + 5, samplers=2, lease_s=3.0, kinds=kinds)


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert drawn(1, 16) == drawn(1, 16)
    assert drawn(1, 16) != drawn(2, 16)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_once_before_any_comes_again_and_steps_are_left_for_all(seed: int) -> None:
    found = drawn(seed, 20)
    assert set(Counter(fault.kind for fault in found[:8]).values()) == {1}
    assert set(Counter(fault.kind for fault in found).values()) == {2, 3}
    kills = [fault.target for fault in drawn(seed, 8, (FaultKind.KILL,))]
    assert Counter(kills) == dict.fromkeys(("coordinator", "learner", "sampler-0", "sampler-1"), 2)
    steps = [fault.after_step for fault in found]
    assert steps == sorted(steps)
    assert steps[0] >= 1
    assert steps[-1] <= 5 * 20
    assert all(fault.seconds > 3.0 for fault in found if fault.kind is not FaultKind.DELAY)  # longer than a lease
