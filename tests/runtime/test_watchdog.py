"""Phases that take too long end with a cause, and with what every thread did; those that get on, and roles at rest, do not."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from slipstream.core.clock import ManualClock
from slipstream.loop.phases import Phases
from slipstream.runtime.watchdog import Watchdog
from slipstream.telemetry.events import NullEvents


class Kept(NullEvents):
    """Events that are kept."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self.rows.append({"role": role, "kind": kind, **fields})


def watched(phases: list[Phases], change: Callable[[Watchdog], None]) -> tuple[list[str], list[dict[str, Any]]]:
    """What is barked while `change` has its way; the thread is held still and looks are made by hand."""
    barked, events = list[str](), Kept()
    dog = Watchdog(phases, {"checkpoint": 3.0}, 10.0, events, barked.append, look_s=1e6)
    change(dog)
    dog._ending.set()
    return barked, events.rows


def test_a_phase_beyond_its_limit_is_told_once_with_all_stacks() -> None:
    clock = ManualClock()
    phases = Phases("learner", clock, NullEvents())

    def change(dog: Watchdog) -> None:
        phases.enter("checkpoint")
        clock.advance(3.0)
        dog._look(phases)
        clock.advance(0.5)
        dog._look(phases)
        dog._look(phases)
        phases.enter("step")  # with the default limit
        clock.advance(9.0)
        dog._look(phases)
        phases.enter("checkpoint")
        clock.advance(4.0)
        dog._look(phases)

    barked, rows = watched([phases], change)
    assert barked == [
        f"learner has been in phase 'checkpoint' for {seconds} s without getting on; the limit is 3 s (watchdog)" for seconds in (4, 4)
    ]
    assert [(row["kind"], row["phase"], row["limit_s"]) for row in rows] == [("overdue", "checkpoint", 3.0)] * 2
    assert "test_a_phase_beyond_its_limit" in rows[0]["stacks"][threading.current_thread().name]


def test_a_role_that_gets_on_or_rests_is_left_alone() -> None:
    clock = ManualClock()
    sampler, learner = Phases("sampler-0", clock, NullEvents()), Phases("learner", clock, NullEvents())

    def change(dog: Watchdog) -> None:
        learner.enter("wait")
        for _ in range(100):
            sampler.enter("generate")  # a step each
            clock.advance(9.0)
            dog._look(sampler)
            dog._look(learner)
        sampler.enter("ended")
        clock.advance(99.0)
        dog._look(sampler)

    assert watched([sampler, learner], change) == ([], [])


HANGS = """
import threading, time
from slipstream.core.clock import SystemClock
from slipstream.loop.phases import Phases
from slipstream.runtime.watchdog import Watchdog, end_process
from slipstream.telemetry.events import NullEvents
phases = Phases("learner", SystemClock(), NullEvents())
phases.enter("step")
Watchdog([phases], {}, 0.05, NullEvents(), lambda cause: end_process(cause, grace_s=0.05), look_s=0.01)
threading.Event().wait()
"""


def test_a_process_that_cannot_end_itself_is_ended_with_the_cause() -> None:
    found = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 1
    assert "learner has been in phase 'step'" in found.stderr
    assert "and is ended" in found.stderr
