"""A learner's way from a fresh policy or a checkpoint to the last step: warm start, steps, evaluations, checkpoints.

The same in an embedded run and in a learner's own process; what differs is in `Parts`. Called by `runtime.train` and `processes.learner`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.ports import WeightStore
from slipstream.core.records import WeightVersion
from slipstream.engine.engine import Engine
from slipstream.loop.phases import Phases
from slipstream.loop.warm_start import warm_start
from slipstream.runtime.checkpointer import Checkpointer
from slipstream.runtime.compile_watch import CompileWatch
from slipstream.runtime.embedded import Embedded
from slipstream.runtime.grader_check import check_grader
from slipstream.runtime.outcome import Interrupted
from slipstream.runtime.policy import Policy
from slipstream.runtime.recorder import Recorder
from slipstream.runtime.self_test import check_before_run
from slipstream.runtime.stop import StopFlag
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.checkpoint import Checkpoint
from slipstream.train.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the job works with."""

    learner: Learner
    store: WeightStore
    drive: Embedded  # waits for batches, trains on them, evaluates
    tested: Engine  # tested against the learner before the first step
    phases: Phases  # the learner's
    lineage: int
    sync: Callable[[], None]  # makes the journal survive a power cut
    forget: Callable[[int], None]  # batches before this step will never be served again


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One start of a learner."""

    config: RunConfig
    policy: Policy
    directory: RunDirectory
    recorder: Recorder
    progress: Progress
    clock: SystemClock
    run_id: str

    def run(self, parts: Parts, checkpoint: Checkpoint | None, stop: StopFlag) -> None:
        """To the last step. Raises Interrupted when `stop` is set."""
        config, events = self.config, self.recorder.events
        self._tell_of_data()
        checkpointer = Checkpointer(self.directory, self.clock, events, keep_best=config.checkpoint.keep_best, on_written=parts.forget)
        try:
            if checkpoint is None:
                self._begin(parts, checkpointer, stop)
            else:
                self._go_on(parts, checkpoint)
            self.progress.phase("checking sampler and grader")
            check_grader(self.policy.task, events)
            check_before_run(config, self.policy.spec, self.policy.task, parts.tested, parts.learner, events)
            self._steps(parts, checkpointer, stop)
        finally:
            checkpointer.wait()

    def _tell_of_data(self) -> None:
        """What a person should know of the data and the chat template."""
        policy, events = self.policy, self.recorder.events
        for note in (*policy.task.notes, *(note for corpus in policy.corpora for note in corpus.notes)):
            events.emit("source", "skipped", detail=note)
            self.progress.note(note)
        for fault in policy.template_faults:
            events.emit("source", "template_fault", detail=fault)
            self.progress.note(f"chat template, {fault}")

    def _begin(self, parts: Parts, checkpointer: Checkpointer, stop: StopFlag) -> None:
        """Warm start, then version 0. A run killed before its first checkpoint begins here again."""
        total = sum(stage.steps for stage in self.config.warm_start.stages)
        if total:
            self.progress.phase("warm start")
            for step, loss in warm_start(parts.learner, self.policy.task, self.config.warm_start):
                self.recorder.warm_start(step, total, loss)
                if stop.is_set():
                    raise Interrupted(f"{stop.cause} in the warm start", 0, self.directory.path)
        parts.learner.begin_reinforcement()
        parts.store.publish(parts.learner.weights())
        if total:
            self._checkpoint(parts, checkpointer)

    def _go_on(self, parts: Parts, checkpoint: Checkpoint) -> None:
        self.progress.note(f"going on from checkpoint {checkpoint.path.name}")
        parts.learner.restore(checkpoint.path)
        for weights in older_versions(checkpoint, parts.learner.weights().params, parts.lineage):
            parts.store.publish(weights)
        parts.store.publish(parts.learner.weights())
        self.recorder.events.emit("supervisor", "resume", step=checkpoint.step, lineage=parts.lineage)

    def _steps(self, parts: Parts, checkpointer: Checkpointer, stop: StopFlag) -> None:
        config, steps = self.config, self.config.run.steps
        drive = parts.drive
        watch = CompileWatch(self.recorder.events)
        drive.start()
        self._ask_evaluation(drive, parts)
        self.progress.phase("reinforcement learning")
        try:
            while parts.learner.version < steps:
                report = drive.next_step()
                if report is None:
                    break
                self.recorder.step(report)
                watch.look()
                checkpointer.look()
                self._ask_evaluation(drive, parts)
                if parts.learner.version % config.checkpoint.every_steps == 0 or parts.learner.version == steps:
                    self._checkpoint(parts, checkpointer)
        finally:
            parts.phases.enter("ended")
            drive.finish()
        if parts.learner.version < steps:
            self._checkpoint(parts, checkpointer)
        checkpointer.finish()
        if parts.learner.version < steps:
            raise Interrupted(stop.cause, parts.learner.version, self.directory.path)

    def _ask_evaluation(self, drive: Embedded, parts: Parts) -> None:
        """Every so many steps, before the first and after the last; after a resume only those not yet made."""
        version = parts.learner.version
        due = version % self.config.evaluation.every_steps == 0 or version == self.config.run.steps
        made = {row["step"] for row in read_jsonl(self.directory.evaluations)} if due else set()
        if due and version not in made:
            drive.evaluate(parts.learner.weights())

    def _checkpoint(self, parts: Parts, checkpointer: Checkpointer) -> None:
        """Everything needed to go on: learner, the older versions that pinned samplers still want, the journal synced.

        Taken now and written by the checkpointer; the journal forgets nothing until the checkpoint exists.
        """
        parts.phases.enter("checkpoint")
        step = parts.learner.version
        pinned = self.config.mode.kind != "inflight"
        older = {version: parts.store.get(version) for version in range(max(0, step - self.config.mode.eta), step) if pinned}
        fill_learner = parts.learner.snapshot()

        def fill(path: Path) -> None:
            fill_learner(path)
            for version, weights in older.items():
                write_tree(path / _older_name(version), weights.params)

        parts.sync()
        notes = {"run_id": self.run_id, "lineage": parts.lineage, "older_versions": list(older)}
        checkpointer.write(step, fill, notes)


def older_versions(checkpoint: Checkpoint, like: Any, lineage: int) -> Iterator[WeightVersion]:
    """Those that pinned samplers still want after the checkpoint, rising; trees as `like`."""
    for version in sorted(checkpoint.notes["older_versions"]):
        params, _ = read_tree(checkpoint.path / _older_name(version), like)
        yield WeightVersion(lineage=lineage, version=version, params=params)


def _older_name(version: int) -> str:
    return f"policy-{version:06d}.safetensors"
