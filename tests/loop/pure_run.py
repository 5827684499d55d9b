"""A whole run in one thread from ports in plain Python: sampler, learner, store and task are a few lines of arithmetic each.

Tokens are a function of (sample seed, position, version), as an engine's are of (seed, position, weights); the learner's
weights are a hash of all it was trained on. So equal weights at the end mean equal batches, in content and order.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.clock import ManualClock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.records import (
    FinishReason,
    Outcome,
    OutcomeKind,
    Prompt,
    Rollout,
    Sample,
    SampleRequest,
    TrainingSequence,
    WeightVersion,
)
from slipstream.core.rng import key_words
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy
from slipstream.loop.advantages import ADVANTAGES
from slipstream.loop.collect import Collector
from slipstream.loop.dispatch import Dispatch, SamplingRules
from slipstream.loop.learn import Learn, Lessons, SamplerCounters, StepReport
from slipstream.loop.phases import Phases
from slipstream.telemetry.events import NullEvents
from tests.loop.at_once import AtOnce, Chatty

SEED = 11
STOP = 0


def logprob(token: int, version: int) -> float:
    """What both sampler and learner say of a token under a version."""
    return -float(key_words(0, "logprob", token, version)[0] % 1_000) / 100


class NumberTask:
    """Prompts, verdicts and text in one. One verdict in about twelve cannot be given."""

    stop_ids = (STOP,)

    def prompt(self, index: int) -> Prompt:
        return Prompt(id=f"n{index}", token_ids=np.arange(index % 3 + 1, dtype=np.int32), text=f"n{index}", answer="")

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in token_ids)

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        value, _ = key_words(0, "grade", prompt.id, completion_text)
        if value % 12 == 0:
            return Outcome(kind=OutcomeKind.TIMEOUT, reward=None)
        return Outcome(kind=OutcomeKind.VALUE if value % 2 else OutcomeKind.WRONG, reward=float(value % 2))


@dataclass(slots=True)
class _Row:
    """One running sample."""

    request: SampleRequest
    started_s: float
    tokens: list[int] = field(default_factory=list[int])
    versions: list[int] = field(default_factory=list[int])


class FakeSampler:
    """A continuous sampler with slots; `tokens_per_step` is its speed."""

    sampler_class = "pure/python"

    def __init__(self, name: str, clock: ManualClock, slots: int, tokens_per_step: int) -> None:
        self.id, self.version = name, -1
        self._clock, self._slots, self._speed = clock, slots, tokens_per_step
        self._queue: list[SampleRequest] = []
        self._rows: list[_Row] = []

    def load(self, weights: WeightVersion) -> None:
        assert weights.params is not None
        self.version = weights.version

    def waiting(self) -> int:
        return len(self._queue)

    def running(self) -> int:
        return len(self._rows)

    def free_slots(self) -> int:
        return max(0, self._slots - len(self._rows) - len(self._queue))

    def submit(self, request: SampleRequest) -> None:
        self._queue.append(request)

    def step(self) -> list[Sample]:
        while self._queue and len(self._rows) < self._slots:
            self._rows.append(_Row(self._queue.pop(0), self._clock.now_s()))
        for row in self._rows:
            for _ in range(self._speed):
                if not self._ended(row):
                    word, _ = key_words(row.request.seed, "token", len(row.tokens), self.version)
                    row.tokens.append(word % 7)
                    row.versions.append(self.version)
        ended = [row for row in self._rows if self._ended(row)]
        self._rows = [row for row in self._rows if not self._ended(row)]
        return [self._sample(row) for row in ended]

    def _ended(self, row: _Row) -> bool:
        return len(row.tokens) == row.request.max_new_tokens or (bool(row.tokens) and row.tokens[-1] == STOP)

    def _sample(self, row: _Row) -> Sample:
        pairs = zip(row.tokens, row.versions, strict=True)
        return Sample(
            key=row.request.key,
            completion_ids=np.array(row.tokens, np.int32),
            logprobs=np.array([logprob(token, version) for token, version in pairs], np.float32),
            versions=np.array(row.versions, np.int32),
            finish_reason=FinishReason.STOP if row.tokens[-1] == STOP else FinishReason.LENGTH,
            slot=0,
            started_s=row.started_s,
            finished_s=self._clock.now_s(),
        )


class FakeLearner:
    """Its weights are a hash of the weights before and of everything it was trained on."""

    def __init__(self, version: int = 0, params: str = "initial") -> None:
        self.version, self.params = version, params

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        digest = hashlib.sha256(self.params.encode())
        for sequence in sequences:
            for name in ("token_ids", "loss_mask", "advantages", "behaviour_logprobs", "versions"):
                digest.update(getattr(sequence, name).tobytes())
        self.params = digest.hexdigest()
        self.version += 1
        return {"tokens": float(sum(sequence.loss_mask.sum() for sequence in sequences))}

    def score(self, sequences: Sequence[TrainingSequence], weights: WeightVersion) -> list[np.ndarray]:
        return [np.array([logprob(token, weights.version) for token in row.token_ids.tolist()], np.float32) for row in sequences]

    def weights(self) -> WeightVersion:
        return WeightVersion(lineage=0, version=self.version, params=self.params)

    def save(self, directory: Path) -> None:
        raise NotImplementedError


class FakeStore:
    """The newest eta + 2 versions."""

    def __init__(self, keep: int) -> None:
        self._keep, self._versions = keep, dict[int, WeightVersion]()

    def publish(self, weights: WeightVersion) -> None:
        assert weights.version > self.newest()
        self._versions[weights.version] = weights
        self._versions = {version: self._versions[version] for version in sorted(self._versions)[-self._keep :]}

    def newest(self) -> int:
        return max(self._versions, default=-1)

    def has(self, version: int) -> bool:
        return version in self._versions

    def get(self, version: int) -> WeightVersion:
        return self._versions[version]


@dataclass(frozen=True, kw_only=True)
class SamplerShape:
    slots: int
    tokens_per_step: int
    turns: int = 1  # how often it has its turn, beside the others


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint of the fake run holds."""

    version: int
    params: str
    store: tuple[WeightVersion, ...]


class PureRun:
    """One start of a run; `journal` and `saved` make it go on."""

    def __init__(
        self,
        journal: Path,
        policy: Policy,
        samplers: Sequence[SamplerShape],
        schedule_seed: int,
        saved: Saved | None = None,
        *,
        chatty: bool = False,  # episodes of two turns, answered late and in any order
    ) -> None:
        self.policy, self.random = policy, random.Random(schedule_seed)
        self.clock, events, task = ManualClock(), NullEvents(), NumberTask()
        self.ledger = Ledger(journal, policy, task, self.clock)
        self.store = FakeStore(keep=policy.eta + 2)
        self.learner = FakeLearner(saved.version, saved.params) if saved else FakeLearner()
        if saved:
            self.ledger.restart(saved.version)
            for weights in saved.store:
                self.store.publish(weights)
        self.store.publish(self.learner.weights())
        rules = SamplingRules(seed=SEED, group_size=policy.group_size, max_new_tokens=9, temperature=1.0, pinned=policy.pinned)
        self.dispatches: list[Dispatch] = []
        for number, shape in enumerate(samplers):
            sampler = FakeSampler(f"sampler-{number}", self.clock, shape.slots, shape.tokens_per_step)
            collector = Collector(
                run_id="run",
                seed=SEED,
                lineage=self.ledger.state.lineage,
                sampler_id=sampler.id,
                sampler_class=sampler.sampler_class,
                codec=task,
            )
            phases = Phases(sampler.id, self.clock, events)
            common = {"ledger": self.ledger, "store": self.store, "events": events, "clock": self.clock}
            roles = {"sampler": sampler, "environments": Chatty(task, self.random) if chatty else AtOnce(task), "phases": phases}
            self.dispatches.append(Dispatch(collector=collector, rules=rules, **roles, **common))
        self._turns = [dispatch for dispatch, shape in zip(self.dispatches, samplers, strict=True) for _ in range(shape.turns)]
        self.learn = Learn(
            learner=self.learner,
            ledger=self.ledger,
            store=self.store,
            lessons=Lessons(advantage=ADVANTAGES["rloo"]),
            audit_every=2,
            counters=SamplerCounters(tokens=lambda: sum(dispatch.tokens for dispatch in self.dispatches), wait_s=lambda: 0.0),
            phases=Phases("learner", self.clock, events),
            events=events,
            clock=self.clock,
        )
        self.reports: list[StepReport] = []

    def run(self, steps: int | None = None) -> None:
        """Until that many steps of this start are done (default: all), in an order that the schedule's seed decides."""
        wanted = self.policy.steps if steps is None else self.learner.version + steps
        idle = 0
        while self.learner.version < wanted:
            self.clock.advance(0.01)
            turn = self.random.choice([*self._turns, None])
            if turn is None:
                report = self.learn.turn()
                idle = idle + 1 if report is None else 0
                self.reports += [report] if report else []
            else:
                idle = 0 if turn.turn() else idle + 1
            assert idle < 500, f"nobody can do anything: {self.ledger.state.balance()}"

    def save(self) -> Saved:
        older = range(max(0, self.learner.version - self.policy.eta), self.learner.version) if self.policy.pinned else ()
        store = tuple(self.store.get(version) for version in older)
        return Saved(version=self.learner.version, params=self.learner.params, store=store)

    def metrics(self) -> list[dict[str, Any]]:
        return [report.metrics for report in self.reports]

    def batch_bytes(self) -> list[tuple[Any, ...]]:
        """Each batch without what may differ between schedules: who sampled it, and when."""
        return [tuple(_timeless(rollout) for rollout in report.batch.rollouts) for report in self.reports]


def _timeless(rollout: Rollout) -> bytes:
    return rollout_to_bytes(replace(rollout, sampler_id="", claimed_s=0.0, started_s=0.0, finished_s=0.0, lineage=0))
