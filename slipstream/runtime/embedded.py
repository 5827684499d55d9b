"""The embedded runtime: one process, the learner in the calling thread, a sampler and an evaluator in threads of their own.

In a learner's own process the same without the sampler.

The same loop code as everywhere; only the waiting and the watching are here. Who waits, waits for the ledger to change, and
never longer than the watchdog allows without any progress.
"""

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.records import EvaluationResult, WeightVersion
from slipstream.loop.dispatch import Dispatch
from slipstream.loop.learn import StepReport
from slipstream.loop.phases import Phases
from slipstream.runtime.stop import StopFlag
from slipstream.runtime.watchdog import end_process
from slipstream.runtime.worker import Worker

LOOK_S = 0.5  # longest sleep between two looks at stop flags and failures
WATCHDOG_S = 1_200.0  # without any ledger change for this long, the run ends with a cause


class Changes(Protocol):
    """What is waited for: the ledger's changes."""

    @property
    def sequence(self) -> int: ...

    def wait_change(self, seen: int, timeout_s: float) -> bool: ...

    def wake(self) -> None: ...


class Turns(Protocol):
    """The learner at work, as `loop.learn.Learn`."""

    def turn(self) -> StepReport | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The parts that run."""

    learn: Turns
    dispatch: Dispatch | None  # None: samplers are processes of their own
    evaluate: Callable[[WeightVersion], EvaluationResult]
    ledger: Changes
    tickets: Callable[[], Mapping[str, int]]  # by state
    learner_phases: Phases
    sampler_phases: Phases
    evaluator_phases: Phases
    clock: Clock
    samples: bool = True  # False: steps are made of static corpora, and the sampler stays idle


class Embedded:
    """Starts the threads, drives the learner, stops everything. One use."""

    def __init__(self, roles: Roles, stop: StopFlag, on_evaluation: Callable[[EvaluationResult], None]) -> None:
        self._roles, self._stop, self._on_evaluation = roles, stop, on_evaluation
        self._ending = False
        self._overdue: str | None = None
        self._evaluations: queue.SimpleQueue[WeightVersion | None] = queue.SimpleQueue()
        wake = roles.ledger.wake
        self._sampler = Worker("sampler-0", self._sample, wake)
        self._evaluator = Worker("evaluator", self._evaluate, wake)

    def start(self) -> None:
        self._sampler.start()
        self._evaluator.start()

    def fail(self, cause: str) -> None:
        """End the run with this cause, from any thread: at the learner's next look, or where it does not look any more, the process."""
        self._overdue = cause
        self._roles.ledger.wake()
        end_process(cause)

    def evaluate(self, weights: WeightVersion) -> None:
        """Ask for an evaluation; it is made in turn, while the run goes on."""
        self._evaluations.put(weights)

    def next_step(self) -> StepReport | None:
        """The next learner step, or None when the run was told to stop. Raises what killed a thread, or RunFailed by the watchdog."""
        roles = self._roles
        since = roles.clock.now_s()
        while True:
            self._check()
            if self._stop.is_set():
                return None
            seen = roles.ledger.sequence
            report = roles.learn.turn()
            if report is not None:
                return report
            if roles.ledger.wait_change(seen, LOOK_S):
                since = roles.clock.now_s()
            elif roles.clock.now_s() - since > WATCHDOG_S:
                raise RunFailed(self._stuck())

    def finish(self) -> None:
        """Let the evaluator do what was asked of it, end the sampler, and raise what either died of."""
        self._ending = True
        self._roles.ledger.wake()
        self._evaluations.put(None)
        for worker in (self._sampler, self._evaluator):
            if not worker.join(WATCHDOG_S):
                raise RunFailed(f"{worker.name} did not end within {WATCHDOG_S:.0f} s: {self._stuck()}")
        self._check()

    def _check(self) -> None:
        if self._overdue:
            raise RunFailed(self._overdue)
        self._sampler.check()
        self._evaluator.check()

    def _sample(self) -> None:
        ledger, dispatch = self._roles.ledger, self._roles.dispatch
        if dispatch is None:
            return
        drain = False
        try:
            while not self._ending:
                seen = ledger.sequence
                if not self._roles.samples or not dispatch.turn():
                    ledger.wait_change(seen, LOOK_S)
            drain = self._stop.is_set()
        finally:
            dispatch.close(drain=drain)
        self._roles.sampler_phases.enter("ended")

    def _evaluate(self) -> None:
        phases = self._roles.evaluator_phases
        while True:
            phases.enter("wait")
            weights = self._evaluations.get()
            if weights is None:
                break
            phases.enter("evaluate")
            self._on_evaluation(self._roles.evaluate(weights))
        phases.enter("ended")

    def _stuck(self) -> str:
        roles = self._roles
        who = [("learner", roles.learner_phases), ("evaluator", roles.evaluator_phases)]
        if roles.dispatch is not None:
            who.append(("sampler-0", roles.sampler_phases))
        phases = "; ".join(f"{name} in phase {phases.current!r} for {phases.waited_s():.0f} s" for name, phases in who)
        return f"no progress for {WATCHDOG_S:.0f} s: {phases}; tickets {dict(roles.tickets())}"
