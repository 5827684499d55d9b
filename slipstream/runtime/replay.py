"""A run executed again from what it recorded, and compared: tokens, log-probs, advantages, metrics, weights. Stops at the first difference.

Batches are those that were trained on, in their order; so an asynchronous run repeats whatever its timing was. Called by the command
line.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.errors import RunFailed, UsageError
from slipstream.core.records import Batch, Receipt, Rollout, Sample, Ticket
from slipstream.engine.engine import OnSwap
from slipstream.loop.learn import SamplerCounters, StepReport
from slipstream.loop.phases import Phases
from slipstream.loop.warm_start import warm_start
from slipstream.runtime.assembly import build_engine, build_learn
from slipstream.runtime.learning import older_versions
from slipstream.runtime.policy import Policy, open_policy
from slipstream.runtime.redraw import Redraw, Turn, turns
from slipstream.telemetry.events import NullEvents
from slipstream.telemetry.jsonl import encode_row, read_jsonl
from slipstream.telemetry.recorded import read_batch
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.arrays import read_tree
from slipstream.train.checkpoint import Checkpoint, checkpoint_of, steps_on_disk
from slipstream.train.learner import Learner
from slipstream.weights.store import MemoryStore

TIMED = ("time", "tokens_per_second", "sampler_tokens_per_second", "sampler_idle", "learner_idle", "mfu", "phase_seconds")
OF_THE_LEDGER = ("refilled_groups", "dropped_zero_variance", "dropped_stale")  # counts of what no batch holds
OF_THE_SAMPLER = ("prefilled_tokens", "reused_token_share")
OF_THE_AUDIT = ("mismatch_abs_max", "mismatch_abs_mean", "mismatch_tokens", "offpolicy_mismatch", "offpolicy_lag")
CLOSE = 1e-3  # nats; log-probs of fast arithmetic may differ so far, since other programs may have computed keys and values


class Difference(RunFailed):
    """The first thing that did not come out as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A step that came out as recorded."""

    step: int  # as in metrics.jsonl
    turns: int  # of the model, drawn again
    tokens: int  # of theirs, all equal
    equal_logprobs: int  # of those, to the bit
    gap: float  # largest difference of log-probs, nats
    taken_over: int  # turns that come out only as a second sampler went on with them
    skipped: int  # turns not drawn again: of a sampler of another class, or of versions from before the first step replayed
    weights: bool  # compared with a checkpoint


class Replay:
    """`steps` (first, last), 1-based as in metrics.jsonl; None: all. Raises UsageError for steps that the run has not got to."""

    def __init__(self, directory: RunDirectory, config: RunConfig, steps: tuple[int, int] | None) -> None:
        self._directory, self._config = directory, config
        self._rows = {row["step"]: row for row in read_jsonl(directory.metrics)}
        done = max(self._rows, default=0)
        self.first, self.last = steps or (1, done)
        if not 1 <= self.first <= self.last <= done:
            raise UsageError(f"--steps {self.first}:{self.last}: the run has steps 1 to {done}; give A:B with 1 <= A <= B <= {done}")
        self._policy: Policy = open_policy(config)
        self._learner = Learner(config, self._policy.spec, self._policy.params, 0, self._policy.reference)
        self._store = MemoryStore(keep=config.mode.eta + 2)
        self._batches = _Batches(directory)

    def run(self) -> Iterator[Repeated]:
        """One after the other. Raises Difference at the first step that is not as recorded."""
        self._begin()
        clock = SystemClock()
        learn = build_learn(
            self._config,
            self._policy,
            learner=self._learner,
            ledger=self._batches,
            store=self._store,
            counters=SamplerCounters(tokens=lambda: 0, wait_s=lambda: 0.0),
            phases=Phases("learner", clock, NullEvents()),
            events=NullEvents(),
            clock=clock,
        )
        redraw = self._redraw(clock)
        while self._learner.version < self.last:
            step = self._learner.version + 1
            wanted = step >= self.first
            found = self._drawn_again(step, redraw) if wanted else _Drawn()
            audited = self._config.has_rollouts and all(map(self._has_weights, self._batches.of(step - 1)[0].rollouts))
            report = learn.turn()
            assert report is not None
            self._compare(step, report, () if audited else OF_THE_AUDIT)
            if wanted:
                yield Repeated(step=step, weights=self._compare_weights(step), **found.counts())

    def _begin(self) -> None:
        """From the newest checkpoint before the first step wanted, or from the start."""
        root = self._directory.checkpoints
        before = [step for step in steps_on_disk(root) if step < self.first]
        checkpoint = next((found for step in reversed(before) if (found := checkpoint_of(root, step))), None)
        if checkpoint is None:
            for _ in warm_start(self._learner, self._policy.task, self._config.warm_start):
                pass
            self._learner.begin_reinforcement()
        else:
            self._go_on(checkpoint)
        self._store.publish(self._learner.weights())

    def _go_on(self, checkpoint: Checkpoint) -> None:
        self._learner.restore(checkpoint.path)
        for weights in older_versions(checkpoint, self._learner.weights().params, 0):
            self._store.publish(weights)

    def _redraw(self, clock: SystemClock) -> Redraw:
        sampling = self._config.sampling
        self._engine = build_engine(self._config, self._policy, clock, "replay", sampling.slots)
        on_swap = _decisions(self._directory, sampling.kv_on_swap)
        return Redraw(self._engine, self._store, sampling.temperature, self._policy.task.tokenizer.stop_ids, on_swap)

    def _drawn_again(self, step: int, redraw: Redraw) -> "_Drawn":
        drawn = _Drawn()
        if not self._config.has_rollouts:
            return drawn
        batch = self._batches.of(step - 1)[0]
        every = [turn for rollout in (*batch.rollouts, *batch.dropped) for turn in turns(rollout)]
        own = self._engine.sampler_class
        wanted = [turn for turn in every if turn.rollout.sampler_class == own and self._has_weights(turn.rollout)]
        drawn.skipped = len(every) - len(wanted)
        exact, unlike = self._config.model.numerics == "exact", list[tuple[Turn, Sample]]()
        for turn, sample in redraw.draw(wanted, self._config.sampling.slots):
            try:
                drawn.add(step, turn, sample, exact=exact)
            except Difference:
                unlike.append((turn, sample))
        for turn, sample in unlike:
            self._add_taken_over(drawn, step, turn, sample, redraw)
        return drawn

    def _add_taken_over(self, drawn: "_Drawn", step: int, turn: Turn, sample: Sample, redraw: Redraw) -> None:
        """A turn may have been gone on with by another sampler when the first one left. Raises the Difference where that is no answer."""
        exact = self._config.model.numerics == "exact"
        for other in redraw.taken_over(turn):
            try:
                drawn.add(step, turn, other, exact=exact)
            except Difference:
                continue
            drawn.taken_over += 1
            return
        drawn.add(step, turn, sample, exact=exact)

    def _has_weights(self, rollout: Rollout) -> bool:
        """Of all its tokens. After a start from a checkpoint versions before it are gone, and an audit takes other samples."""
        return all(self._store.has(int(version)) for version in np.unique(rollout.versions))

    def _compare(self, step: int, report: StepReport, passed_over: Sequence[str]) -> None:
        row = self._rows.get(step)
        if row is None:
            raise Difference(f"step {step}: metrics.jsonl has no row of it")
        again = json.loads(encode_row(report.metrics))
        for key, recorded in row.items():
            if key not in (*TIMED, *OF_THE_LEDGER, *OF_THE_SAMPLER, *passed_over) and again.get(key) != recorded:
                raise Difference(f"step {step}: {key} is {again.get(key)}, recorded {recorded}")
        if self._config.has_rollouts:
            advantages, now = self._batches.of(step - 1)[1], report.advantages.astype(np.float32)
            if not np.array_equal(advantages, now):
                place = int(np.flatnonzero(advantages != now)[0])
                raise Difference(f"step {step}: the advantage of rollout {place} is {now[place]}, recorded {advantages[place]}")

    def _compare_weights(self, step: int) -> bool:
        """With the checkpoint of that step, if one is kept."""
        checkpoint = checkpoint_of(self._directory.checkpoints, step)
        if checkpoint is None:
            return False
        params = self._learner.weights().params
        recorded, _ = read_tree(checkpoint.path / "params.safetensors", params)
        pairs = zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(recorded), strict=True)
        for (place, leaf), kept in pairs:
            if not np.array_equal(np.asarray(leaf).view(np.uint8), np.asarray(kept).view(np.uint8)):
                raise Difference(f"step {step}: weights {jax.tree_util.keystr(place)} are not those of checkpoint {checkpoint.path.name}")
        return True


@dataclass(slots=True, kw_only=True)
class _Drawn:
    """Sums over the turns of a step."""

    turns: int = 0
    tokens: int = 0
    equal_logprobs: int = 0
    gap: float = 0.0
    taken_over: int = 0
    skipped: int = 0

    def add(self, step: int, turn: Turn, sample: Sample, *, exact: bool) -> None:
        """Raises Difference where the turn is not as recorded."""
        rollout = turn.rollout
        tokens, logprobs = rollout.completion_ids[turn.start : turn.end], rollout.logprobs[turn.start : turn.end]
        at = f"step {step}, {turn.name}"
        shared = min(len(tokens), len(sample.completion_ids))
        unlike = np.flatnonzero(sample.completion_ids[:shared] != tokens[:shared])
        if len(unlike) or len(tokens) != len(sample.completion_ids):
            place = int(unlike[0]) if len(unlike) else shared
            now, before = ([*ids.tolist(), None][place] for ids in (sample.completion_ids, tokens))
            raise Difference(f"{at}: token {place} is {now}, recorded {before}")
        equal = sample.logprobs.view(np.int32) == logprobs.view(np.int32)
        gaps = np.abs(sample.logprobs - logprobs)
        if not (equal.all() if exact else gaps.max() <= CLOSE):
            place = int(np.argmin(equal) if exact else np.argmax(gaps))
            raise Difference(f"{at}: the log-prob of token {place} is {sample.logprobs[place]!r}, recorded {logprobs[place]!r}")
        self.turns += 1
        self.tokens += len(tokens)
        self.equal_logprobs += int(equal.sum())
        self.gap = max(self.gap, float(gaps.max()))

    def counts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _Batches:
    """The recorded batches as a ledger; only what the learner's loop asks for."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._kept: tuple[int, tuple[Batch, np.ndarray]] | None = None

    def of(self, step: int) -> tuple[Batch, np.ndarray]:
        if self._kept is None or self._kept[0] != step:
            self._kept = (step, read_batch(self._directory.rollouts, step))
        return self._kept[1]

    def batch(self, step: int) -> Batch:
        return self.of(step)[0]

    def commit(self, step: int) -> None: ...

    def wanted_version(self, newest: int) -> int | None:
        return None

    def claim(self, worker: str, tickets: int, loaded_version: int) -> list[Ticket]:
        return []

    def submit(self, rollouts: Sequence[Rollout]) -> list[Receipt]:
        raise RuntimeError("a replay hands nothing in")


def _decisions(directory: RunDirectory, on_swap: OnSwap) -> Callable[[str, int], OnSwap]:
    """What samplers did with keys and values at each swap; where `auto` decided, as its events tell."""
    rows = [row for row in read_jsonl(directory.events) if row["kind"] == "kv_swap"] if on_swap == "auto" else []
    decided: Mapping[tuple[str, int], OnSwap] = {(row["role"], row["version"]): "keep" if row["kept"] else "recompute" for row in rows}
    return lambda sampler, version: decided.get((sampler, version), "keep") if on_swap == "auto" else on_swap
