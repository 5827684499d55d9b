"""The main job: `slipstream train`. A new run or one that goes on; warm start, steps, evaluations, checkpoints, report."""

from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.ids import random_run_id
from slipstream.runtime.assembly import assemble
from slipstream.runtime.devices import configure_jax
from slipstream.runtime.embedded import Embedded
from slipstream.runtime.failures import failures_logged
from slipstream.runtime.learning import Job, Parts
from slipstream.runtime.outcome import Finished, finished_run
from slipstream.runtime.policy import open_policy
from slipstream.runtime.recorder import Recorder
from slipstream.runtime.status_keeper import StatusKeeper, embedded_moment
from slipstream.runtime.stop import StopFlag
from slipstream.runtime.watchdog import Watchdog
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.report import write_report
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.trace import write_trace
from slipstream.train.checkpoint import Checkpoint, newest_checkpoint
from slipstream.train.placement import configured_placement


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
        return finished_run(directory, clock.now_s(), directory.report)
    run_id = str(checkpoint.notes["run_id"]) if checkpoint else random_run_id()
    directory.truncate_after(checkpoint.step if checkpoint else -1)
    recorder = Recorder(directory, clock, progress)
    try:
        with failures_logged(directory.logs / "supervisor.log"):
            job = Job(config=config, policy=policy, directory=directory, recorder=recorder, progress=progress, clock=clock, run_id=run_id)
            _embedded(job, checkpoint, stop)
    finally:
        recorder.close()
    write_trace(directory.path)
    report = write_report(directory.path, decode=policy.task.tokenizer.decode)
    progress.finish()
    return finished_run(directory, clock.now_s(), report)


def _embedded(job: Job, checkpoint: Checkpoint | None, stop: StopFlag) -> None:
    """All roles in this process."""
    config, policy, directory, events = job.config, job.policy, job.directory, job.recorder.events
    restart_at = checkpoint.step if checkpoint else 0 if directory.journal.exists() else None
    parts = assemble(config, policy, directory, job.clock, events, job.run_id, restart_at)
    mode = {"mode": config.mode.kind, "eta": config.mode.eta, "seed": config.run.seed, "recipe": config.run.recipe}
    events.emit("supervisor", "run_started", run_id=job.run_id, **mode)
    embedded = Embedded(parts.roles, stop, job.recorder.evaluation)
    learning = Parts(
        learner=parts.learner,
        store=parts.store,
        drive=embedded,
        tested=parts.sampler,
        phases=parts.roles.learner_phases,
        lineage=parts.ledger.state.lineage,
        sync=parts.ledger.sync,
        forget=parts.ledger.forget_before if config.has_rollouts else lambda step: None,
    )
    roles, limits = parts.roles, config.watchdog
    watched = (roles.learner_phases, roles.sampler_phases, roles.evaluator_phases)
    keeper = StatusKeeper(directory.status, lambda: embedded_moment(parts, job.clock))
    watchdog = Watchdog(watched, limits.phases, limits.seconds, events, embedded.fail)
    try:
        job.run(learning, checkpoint, stop)
    finally:
        watchdog.close()
        keeper.close()
    parts.ledger.close()
    events.emit("supervisor", "run_finished", steps=parts.learner.version)
