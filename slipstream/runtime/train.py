"""The main job: `slipstream train`. A new run or one that goes on; warm start, steps, evaluations, checkpoints, report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.ids import random_run_id
from slipstream.core.records import EvaluationResult, WeightVersion
from slipstream.loop.warm_start import warm_start
from slipstream.runtime.assembly import Assembly, assemble
from slipstream.runtime.checkpointer import Checkpointer
from slipstream.runtime.compile_watch import CompileWatch
from slipstream.runtime.devices import configure_jax
from slipstream.runtime.embedded import Embedded
from slipstream.runtime.failures import failures_logged
from slipstream.runtime.policy import Policy, open_policy
from slipstream.runtime.recorder import Recorder
from slipstream.runtime.self_test import check_before_run, check_grader
from slipstream.runtime.stop import StopFlag
from slipstream.telemetry.evaluations import evaluation_from_row
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.report import write_report
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.trace import write_trace
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.checkpoint import Checkpoint, newest_checkpoint
from slipstream.train.placement import configured_placement


class Interrupted(BaseException):
    """The run was told to stop; everything so far is kept. Not an Exception, so that no handler takes it for a failure."""

    def __init__(self, cause: str, step: int, directory: Path) -> None:
        super().__init__(f"stopped by {cause} after step {step}; go on with: slipstream train --resume --run-dir {directory}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run came to, for the summary."""

    directory: Path
    metrics: list[dict[str, Any]]
    evaluations: list[EvaluationResult]
    seconds: float  # run clock at the end, earlier starts included
    report: Path


def train(config: RunConfig, directory: RunDirectory, progress: Progress, stop: StopFlag) -> Finished:
    """Run to the last step. Raises Interrupted when `stop` is set, RunFailed with its cause when it cannot go on."""
    configure_jax()
    configured_placement(config.mesh)  # too few devices are refused before anything is written
    rows = read_jsonl(directory.events) if directory.events.exists() else []
    clock = SystemClock(offset_s=max((row["time"] for row in rows), default=0.0))
    progress.start(f"{config.run.recipe} · {config.mode.kind} · seed {config.run.seed}", config.run.steps)
    progress.phase("building the model")
    policy = open_policy(config)
    progress.note(f"run directory {directory.path}")
    checkpoint = newest_checkpoint(directory.checkpoints)
    if checkpoint and checkpoint.step >= config.run.steps:
        progress.note(f"already finished: {checkpoint.step} steps are done")
        return _finished(directory, clock.now_s(), directory.report)
    run_id = str(checkpoint.notes["run_id"]) if checkpoint else random_run_id()
    directory.truncate_after(checkpoint.step if checkpoint else -1)
    recorder = Recorder(directory, clock, progress)
    try:
        with failures_logged(directory.logs / "supervisor.log"):
            job = _Job(config=config, policy=policy, directory=directory, recorder=recorder, progress=progress, clock=clock, run_id=run_id)
            job.run(checkpoint, stop)
    finally:
        recorder.close()
    write_trace(directory.path)
    report = write_report(directory.path, decode=policy.task.tokenizer.decode)
    progress.finish()
    return _finished(directory, clock.now_s(), report)


def _finished(directory: RunDirectory, seconds: float, report: Path) -> Finished:
    return Finished(
        directory=directory.path,
        metrics=read_jsonl(directory.metrics),
        evaluations=[evaluation_from_row(row) for row in read_jsonl(directory.evaluations)],
        seconds=seconds,
        report=report,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One start of a run."""

    config: RunConfig
    policy: Policy
    directory: RunDirectory
    recorder: Recorder
    progress: Progress
    clock: SystemClock
    run_id: str

    def run(self, checkpoint: Checkpoint | None, stop: StopFlag) -> None:
        config, events = self.config, self.recorder.events
        restart_at = checkpoint.step if checkpoint else 0 if self.directory.journal.exists() else None
        parts = assemble(config, self.policy, self.directory, self.clock, events, self.run_id, restart_at)
        mode = {"mode": config.mode.kind, "eta": config.mode.eta, "seed": config.run.seed, "recipe": config.run.recipe}
        events.emit("supervisor", "run_started", run_id=self.run_id, **mode)
        for note in (*self.policy.task.notes, *(note for corpus in self.policy.corpora for note in corpus.notes)):
            events.emit("source", "skipped", detail=note)
            self.progress.note(note)
        for fault in self.policy.template_faults:
            events.emit("source", "template_fault", detail=fault)
            self.progress.note(f"chat template, {fault}")
        forget = parts.ledger.forget_before if config.has_rollouts else lambda step: None
        checkpointer = Checkpointer(self.directory, self.clock, events, keep_best=config.checkpoint.keep_best, on_written=forget)
        try:
            if checkpoint is None:
                self._begin(parts, checkpointer, stop)
            else:
                self._go_on(parts, checkpoint)
            self.progress.phase("checking sampler and grader")
            check_grader(self.policy.task, events)
            check_before_run(config, self.policy.spec, self.policy.task, parts.sampler, parts.learner, events)
            self._steps(parts, checkpointer, stop)
        finally:
            checkpointer.wait()
        parts.ledger.close()
        events.emit("supervisor", "run_finished", steps=parts.learner.version)

    def _begin(self, parts: Assembly, checkpointer: Checkpointer, stop: StopFlag) -> None:
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

    def _go_on(self, parts: Assembly, checkpoint: Checkpoint) -> None:
        self.progress.note(f"going on from checkpoint {checkpoint.path.name}")
        parts.learner.restore(checkpoint.path)
        for version in sorted(checkpoint.notes["older_versions"]):
            params, _ = read_tree(checkpoint.path / _older_name(version), parts.learner.weights().params)
            parts.store.publish(WeightVersion(lineage=parts.ledger.state.lineage, version=version, params=params))
        parts.store.publish(parts.learner.weights())
        self.recorder.events.emit("supervisor", "resume", step=checkpoint.step, lineage=parts.ledger.state.lineage)

    def _steps(self, parts: Assembly, checkpointer: Checkpointer, stop: StopFlag) -> None:
        config, steps = self.config, self.config.run.steps
        embedded = Embedded(parts.roles, stop, self.recorder.evaluation)
        watch = CompileWatch(self.recorder.events)
        embedded.start()
        self._ask_evaluation(embedded, parts)
        self.progress.phase("reinforcement learning")
        try:
            while parts.learner.version < steps:
                report = embedded.next_step()
                if report is None:
                    break
                self.recorder.step(report)
                watch.look()
                checkpointer.look()
                self._ask_evaluation(embedded, parts)
                if parts.learner.version % config.checkpoint.every_steps == 0 or parts.learner.version == steps:
                    self._checkpoint(parts, checkpointer)
        finally:
            parts.roles.learner_phases.enter("ended")
            embedded.finish()
        if parts.learner.version < steps:
            self._checkpoint(parts, checkpointer)
        checkpointer.finish()
        if parts.learner.version < steps:
            raise Interrupted(stop.cause, parts.learner.version, self.directory.path)

    def _ask_evaluation(self, embedded: Embedded, parts: Assembly) -> None:
        """Every so many steps, before the first and after the last; after a resume only those not yet made."""
        version = parts.learner.version
        due = version % self.config.evaluation.every_steps == 0 or version == self.config.run.steps
        made = {row["step"] for row in read_jsonl(self.directory.evaluations)} if due else set()
        if due and version not in made:
            embedded.evaluate(parts.learner.weights())

    def _checkpoint(self, parts: Assembly, checkpointer: Checkpointer) -> None:
        """Everything needed to go on: learner, the older versions that pinned samplers still want, the journal synced.

        Taken now and written by the checkpointer; the journal forgets nothing until the checkpoint exists.
        """
        parts.roles.learner_phases.enter("checkpoint")
        step = parts.learner.version
        pinned = self.config.mode.kind != "inflight"
        older = {version: parts.store.get(version) for version in range(max(0, step - self.config.mode.eta), step) if pinned}
        fill_learner = parts.learner.snapshot()

        def fill(path: Path) -> None:
            fill_learner(path)
            for version, weights in older.items():
                write_tree(path / _older_name(version), weights.params)

        parts.ledger.sync()
        notes = {"run_id": self.run_id, "lineage": parts.ledger.state.lineage, "older_versions": list(older)}
        checkpointer.write(step, fill, notes)


def _older_name(version: int) -> str:
    return f"policy-{version:06d}.safetensors"
