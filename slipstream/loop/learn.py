"""The learner's turn: take the next fixed batch, train on it, publish, commit, tell.

`turn` never blocks: without a complete batch it returns None and its caller waits for the ledger to change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.ports import Corpus, Learner, Ledger, WeightStore
from slipstream.core.records import Batch, Rollout, TrainingSequence
from slipstream.loop.advantages import Advantage
from slipstream.loop.audit import OnRatios, audit
from slipstream.loop.gae import Gae, valued
from slipstream.loop.phases import Phases
from slipstream.loop.rewards import Shaping, shaped_rewards
from slipstream.loop.sequences import from_demonstration, from_rollout, group_advantages
from slipstream.loop.step_metrics import (
    Interval,
    batch_metrics,
    episode_metrics,
    interval_metrics,
    kept_metrics,
    offpolicy_metrics,
    outcome_counts,
    refill_metrics,
)
from slipstream.telemetry.events import Events


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One finished step."""

    metrics: dict[str, Any]  # the row of metrics.jsonl
    batch: Batch
    advantages: np.ndarray  # float64, one a rollout; the mean over its tokens where each has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What a step teaches beside the verdicts."""

    advantage: Advantage | Gae  # of a group's rewards, or of the learner's values
    shaping: Shaping = field(default_factory=Shaping)
    scores_reference: bool = False  # the objective has a reference policy, under which every step's rollouts are scored
    corpora: tuple[Corpus, ...] = ()  # static streams mixed into every step
    samples: bool = True  # False: no rollouts, the corpora alone


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCounters:
    """What the learner's loop reads of the samplers, for speeds and idle shares."""

    tokens: Callable[[], int]  # completion tokens drawn so far, all samplers
    wait_s: Callable[[], float]  # seconds spent waiting so far, mean over samplers
    prefilled: Callable[[], tuple[int, int] | None] = lambda: None  # prompt tokens computed, and found in kept pages instead, so far


class Learn:
    """The learner at work. Called by one thread."""

    def __init__(
        self,
        *,
        learner: Learner,
        ledger: Ledger,
        store: WeightStore,
        lessons: Lessons,
        audit_every: int,
        counters: SamplerCounters,
        phases: Phases,
        events: Events,
        clock: Clock,
        peak_flops: float | None = None,
        on_ratios: OnRatios = lambda ratios: None,
    ) -> None:
        """`peak_flops`: what the learner's devices reach in large matrix products, FLOP/s; without it there is no `mfu`.
        `on_ratios` is told what each audit finds of the samplers."""
        self._learner, self._ledger, self._store, self._lessons = learner, ledger, store, lessons
        self._peak_flops, self._on_ratios = peak_flops, on_ratios
        self._audit_every, self._counters = audit_every, counters
        self._phases, self._events, self._clock = phases, events, clock
        self._mark = self._read_counters()

    def turn(self) -> StepReport | None:
        """Train on the next batch if it is complete, and on the step's rows of the corpora."""
        self._phases.enter("wait")
        step = self._learner.version
        batch = self._ledger.batch(step) if self._lessons.samples else Batch(step=step, rollouts=())
        if batch is None:
            return None
        if self._lessons.samples and not batch.rollouts:
            raise RunFailed(f"batch {step} holds no judged sample: every verdict failed; see the outcomes in events.jsonl")
        if batch.refilled_groups:
            self._events.emit("learner", "refilled", step=step + 1, **refill_metrics(batch))
        self._phases.enter("pack")
        sequences, advantages = self._taught(batch.rollouts)
        mismatch: dict[str, float] = {}
        if step % self._audit_every == 0:
            self._phases.enter("audit")
            found = audit(self._learner, self._store, batch.rollouts, sequences)
            mismatch = found.metrics
            self._on_ratios(found.ratios)
        corpora = [from_demonstration(row, corpus.name) for corpus in self._lessons.corpora for row in corpus.rows(step)]
        self._phases.enter("step")
        learned = self._learner.step([*sequences, *corpora])
        self._phases.enter("publish")
        self._store.publish(self._learner.weights())
        if self._lessons.samples:
            self._ledger.commit(step)
        self._events.emit("learner", "publish", version=self._learner.version)
        return StepReport(metrics=self._row(batch, learned, mismatch), batch=batch, advantages=advantages)

    def _taught(self, rollouts: Sequence[Rollout]) -> tuple[list[TrainingSequence], np.ndarray]:
        """The rollouts as sequences, and their advantages."""
        reference, bare = None, [from_rollout(rollout, 0.0) for rollout in rollouts]
        if self._lessons.scores_reference:
            self._phases.enter("reference")
            reference = self._learner.reference_logprobs(bare)
            self._phases.enter("pack")
        of_completions = [near[-len(one.completion_ids) :] for one, near in zip(rollouts, reference, strict=True)] if reference else None
        rewards = shaped_rewards(rollouts, self._lessons.shaping, of_completions)
        if isinstance(self._lessons.advantage, Gae):
            self._phases.enter("values")
            sequences = valued(bare, rewards, self._learner.values(bare), self._lessons.advantage)
            advantages = np.array([one.advantages.sum(dtype=np.float64) / max(1, one.loss_mask.sum()) for one in sequences])
            self._phases.enter("pack")
        else:
            advantages = group_advantages(rollouts, rewards, self._lessons.advantage)
            sequences = [from_rollout(rollout, advantage) for rollout, advantage in zip(rollouts, advantages, strict=True)]
        if reference:
            sequences = [replace(one, reference_logprobs=near) for one, near in zip(sequences, reference, strict=True)]
        return sequences, advantages

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
            | (self._of_batch(batch, now, before) if batch.rollouts else {})
            | learned
            | offpolicy_metrics(learned, mismatch.get("mismatch_abs_mean"))
            | interval_metrics(interval, learned, self._peak_flops)
            | mismatch
        )

    def _of_batch(self, batch: Batch, now: "_Counters", before: "_Counters") -> dict[str, Any]:
        return {
            **batch_metrics(batch.step, batch.rollouts),
            **episode_metrics(batch.rollouts),
            **refill_metrics(batch),
            **(kept_metrics(now.prefilled, before.prefilled) if now.prefilled and before.prefilled else {}),
            "outcomes": outcome_counts(batch),
        }

    def _read_counters(self) -> "_Counters":
        counters = self._counters
        return _Counters(
            time_s=self._clock.now_s(),
            phases=self._phases.seconds(),
            wait_s=counters.wait_s(),
            tokens=counters.tokens(),
            prefilled=counters.prefilled(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    time_s: float
    phases: dict[str, float]
    wait_s: float
    tokens: int
    prefilled: tuple[int, int] | None
