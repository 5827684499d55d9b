"""The main job with each role in a process of its own on this machine: `slipstream train --on processes`.

What a person sees while it goes is read from the files that the learner writes.
"""

from slipstream.config.schema import RunConfig
from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.outcome import Finished, Interrupted, finished_run
from slipstream.runtime.processes.follower import Follower
from slipstream.runtime.processes.supervisor import Supervisor, free_port, roles_of
from slipstream.runtime.stop import StopFlag
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.run_directory import RunDirectory


def train(
    config: RunConfig, directory: RunDirectory, progress: Progress, stop: StopFlag, *, samplers: int, graders: int | None, lease_s: float
) -> Finished:
    """`graders` None: one, where the run has graders.

    Run to the last step. Raises Interrupted when `stop` is set, RunFailed with its cause when a role cannot be kept alive."""
    if not config.has_rollouts:
        raise UsageError("a run of static corpora alone has nothing to sample; train it with --on embedded")
    judges = config.grading.on == "graders"
    graders = int(judges) if graders is None else graders
    if judges != bool(graders):
        fix = "give at least 1" if judges else "a run keeps who judges; start a new one for graders, or leave it out"
        raise UsageError(f"--graders {graders} does not go with grading.on = {config.grading.on!r}; {fix}")
    progress.start(f"{config.run.recipe} · {config.mode.kind} · seed {config.run.seed}", config.run.steps)
    progress.note(f"run directory {directory.path}")
    named = [f"{count} {role}{'s' if count != 1 else ''}" for count, role in ((samplers, "sampler"), (graders, "grader")) if count]
    progress.phase(f"starting a coordinator, a learner and {' and '.join(named)}")
    directory.release()  # the coordinator takes it
    follower = Follower(directory, progress)
    port = free_port()
    roles = roles_of(directory.path, port, samplers, graders, lease_s)
    over = Supervisor(directory.path, f"http://127.0.0.1:{port}", roles, stop, follower.look, progress.note).run()
    steps = max((row["step"] for row in read_jsonl(directory.metrics)), default=0)
    if not over:
        raise Interrupted(stop.cause, steps, directory.path)
    if steps < config.run.steps:
        raise RunFailed(f"the run ended after step {steps} of {config.run.steps}\nlogs: {directory.logs}")
    progress.finish()
    seconds = max((row["time"] for row in read_jsonl(directory.events)), default=0.0)
    return finished_run(directory, seconds, directory.report)
