"""The learner's turn: take the next fixed batch, train on it, publish, commit, tell.

`turn` never blocks: without a complete batch it returns None and its caller waits for the ledger to change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.ports import Learner, Ledger, WeightStore
from slipstream.core.records import Batch, Rollout, TrainingSequence
from slipstream.loop.advantages import GroupAdvantage
from slipstream.loop.phases import Phases
from slipstream.loop.sequences import from_rollout, group_advantages
from slipstream.loop.step_metrics import Interval, batch_metrics, interval_metrics
from slipstream.telemetry.events import Events

AUDITED_SEQUENCES = 8  # re-scored at the version that sampled them, each audited step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One finished step."""

    metrics: dict[str, Any]  # the row of metrics.jsonl
    batch: Batch
    advantages: np.ndarray  # float64, one a rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCounters:
    """What the learner's loop reads of the samplers, for speeds and idle shares."""

    tokens: Callable[[], int]  # completion tokens drawn so far, all samplers
    wait_s: Callable[[], float]  # seconds spent waiting so far, mean over samplers


class Learn:
    """The learner at work. Called by one thread."""

    def __init__(
        self,
        *,
        learner: Learner,
        ledger: Ledger,
        store: WeightStore,
        advantage: GroupAdvantage,
        audit_every: int,
        counters: SamplerCounters,
        phases: Phases,
        events: Events,
        clock: Clock,
    ) -> None:
        self._learner, self._ledger, self._store, self._advantage = learner, ledger, store, advantage
        self._audit_every, self._counters = audit_every, counters
        self._phases, self._events, self._clock = phases, events, clock
        self._mark = self._read_counters()

    def turn(self) -> StepReport | None:
        """Train on the next batch if it is complete."""
        self._phases.enter("wait")
        step = self._learner.version
        batch = self._ledger.batch(step)
        if batch is None:
            return None
        if not batch.rollouts:
            raise RunFailed(f"batch {step} holds no judged sample: every verdict failed; see the outcomes in events.jsonl")
        self._phases.enter("pack")
        advantages = group_advantages(batch.rollouts, self._advantage)
        sequences = [from_rollout(rollout, advantage) for rollout, advantage in zip(batch.rollouts, advantages, strict=True)]
        mismatch = self._audit(step, batch.rollouts, sequences) if step % self._audit_every == 0 else {}
        self._phases.enter("step")
        learned = self._learner.step(sequences)
        self._phases.enter("publish")
        self._store.publish(self._learner.weights())
        self._ledger.commit(step)
        self._events.emit("learner", "publish", version=self._learner.version)
        return StepReport(metrics=self._row(batch, learned, mismatch), batch=batch, advantages=advantages)

    def _audit(self, step: int, rollouts: Sequence[Rollout], sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Mismatch: sampler's against learner's log-probs at the same weights, on samples of one version still in the store."""
        self._phases.enter("audit")
        single = [index for index, rollout in enumerate(rollouts) if self._one_stored_version(rollout)][:AUDITED_SEQUENCES]
        gaps: list[np.ndarray] = []
        for version in sorted({rollouts[index].age_version for index in single}):
            chosen = [sequences[index] for index in single if rollouts[index].age_version == version]
            scored = self._learner.score(chosen, self._store.get(version))
            gaps += [
                np.abs(logprobs - sequence.behaviour_logprobs)[sequence.loss_mask]
                for logprobs, sequence in zip(scored, chosen, strict=True)
            ]
        if not gaps:
            return {}
        every = np.concatenate(gaps)
        return {"mismatch_abs_max": float(every.max()), "mismatch_abs_mean": float(every.mean()), "mismatch_tokens": float(len(every))}

    def _one_stored_version(self, rollout: Rollout) -> bool:
        return rollout.versions.min() == rollout.versions.max() and self._store.has(rollout.age_version)

    def _row(self, batch: Batch, learned: dict[str, float], mismatch: dict[str, float]) -> dict[str, Any]:
        now, before = self._read_counters(), self._mark
        self._mark = now
        phases = {phase: now.phases[phase] - before.phases.get(phase, 0.0) for phase in now.phases}
        interval = Interval(
            seconds=now.time_s - before.time_s,
            learner_phases=phases,
            sampler_wait_s=now.wait_s - before.wait_s,
            sampled_tokens=now.tokens - before.tokens,
        )
        common = {"step": batch.step + 1, "version": self._learner.version, "time": round(now.time_s, 3)}
        nothing = {"kl": None, "mismatch_abs_max": None}
        return (
            common
            | nothing
            | batch_metrics(batch.step, batch.rollouts)
            | learned
            | interval_metrics(interval, learned["tokens"])
            | mismatch
        )

    def _read_counters(self) -> "_Counters":
        return _Counters(
            time_s=self._clock.now_s(), phases=self._phases.seconds(), wait_s=self._counters.wait_s(), tokens=self._counters.tokens()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    time_s: float
    phases: dict[str, float]
    wait_s: float
    tokens: int
