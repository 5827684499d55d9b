"""`slipstream train`: the main job."""

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipstream.config.load import load_config
from slipstream.config.schema import RunConfig
from slipstream.core.errors import UsageError
from slipstream.runtime.outcome import Finished, Interrupted
from slipstream.runtime.stop import STOPPED, StopFlag, installed
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.run_directory import RunDirectory

Job = Callable[[RunConfig, RunDirectory, Progress, StopFlag], Finished]


def train_command(
    recipe: Annotated[str | None, typer.Argument(help="A built-in recipe (quickstart, arithmetic, sums, gsm8k) or a TOML file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Override a setting, e.g. mode.eta=1; all are listed in a run's run.toml. Repeatable."
        ),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Directory of the run; default runs/RECIPE-DATE-TIME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --run-dir from its last checkpoint; RECIPE may be left out.")
    ] = False,
    on: Annotated[
        str, typer.Option(help="Where the roles run: embedded (threads of this process) or processes (of this machine).")
    ] = "embedded",
    samplers: Annotated[int, typer.Option(help="Sampler processes, with --on processes.", min=1)] = 1,
    graders: Annotated[
        int | None, typer.Option(help="Grader processes, with --on processes: they judge instead of the samplers (grading.on).", min=0)
    ] = None,
    lease: Annotated[float, typer.Option(help="With --on processes: seconds after which a role that is not heard of is gone.")] = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")] = False,
) -> None:
    """Train a policy by asynchronous reinforcement learning.

    Example: slipstream train quickstart --set mode.kind=sync --set mode.eta=0
    """
    if on not in ("embedded", "processes"):
        raise UsageError(f"--on {on} is not available; this version runs --on embedded or --on processes")
    if lease <= 0:
        raise UsageError(f"--lease {lease:g}: must be above 0 seconds")
    if resume and run_dir is None:
        raise UsageError("--resume needs --run-dir DIR: the directory of the run to go on with")
    if resume and set_ and recipe is None:
        raise UsageError(f"--set {set_[0]} needs the recipe too; or leave it out: a run keeps the configuration in its run.toml")
    if recipe is None and not resume:
        raise UsageError("no recipe given; try: slipstream train quickstart")
    if graders and on != "processes":
        raise UsageError(f"--graders {graders} needs --on processes; a run in one process is its own grader")
    by_graders = ["grading.on=graders"] if graders else []
    config = load_config(recipe, [*by_graders, *(set_ or [])]) if recipe else None
    jobs = {"embedded": _embedded, "processes": partial(_processes, samplers=samplers, graders=graders, lease_s=lease)}
    _run(config, run_dir or _new_directory(recipe or "run"), jobs[on], resume, quiet, as_json)


def _embedded(config: RunConfig, directory: RunDirectory, progress: Progress, stop: StopFlag) -> Finished:
    from slipstream.runtime.train import train

    return train(config, directory, progress, stop)


def _processes(
    config: RunConfig, directory: RunDirectory, progress: Progress, stop: StopFlag, *, samplers: int, graders: int | None, lease_s: float
) -> Finished:
    from slipstream.runtime.processes.train import train

    return train(config, directory, progress, stop, samplers=samplers, graders=graders, lease_s=lease_s)


def _run(config: RunConfig | None, run_dir: Path, job: Job, resume: bool, quiet: bool, as_json: bool) -> None:
    from slipstream.runtime.opening import discard_run, open_run

    begun, directory = open_run(config, run_dir, resume)

    from slipstream.telemetry.progress import make_progress

    progress = make_progress(sys.stderr, quiet)
    try:
        with installed(StopFlag()) as stop:
            finished = job(begun, directory, progress, stop)  # jax starts here, after everything that can be refused without it
    except Interrupted as interrupted:
        progress.finish()
        print(f"slipstream: {interrupted}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    except UsageError:
        if not resume:
            discard_run(directory)
        raise
    finally:
        progress.finish()
        directory.release()
    _tell(finished, quiet, as_json)


def _tell(finished: Finished, quiet: bool, as_json: bool) -> None:
    from rich.console import Console

    from slipstream.telemetry.summary import before_after, summary_table

    if as_json:
        print(json.dumps(_result(finished)))
    if quiet:
        return
    console = Console(stderr=True)
    if len(finished.evaluations) > 1:
        console.print(before_after(finished.evaluations[0], finished.evaluations[-1]))
    console.print(summary_table(finished.metrics, finished.evaluations, finished.seconds))
    console.print(f"report      {finished.report}", highlight=False)
    console.print(f"checkpoint  {finished.directory / 'checkpoints'}", highlight=False)


def _result(finished: Finished) -> dict:
    last = finished.metrics[-1]
    return {
        "run_dir": str(finished.directory),
        "report": str(finished.report),
        "steps": last["step"],
        "seconds": round(finished.seconds, 2),
        "reward_mean": last.get("reward_mean"),  # absent where there are no rollouts
        "age_max": max((row["age_max"] for row in finished.metrics if "age_max" in row), default=None),
        "evaluations": [{"step": result.step, "pass@1": result.pass_at_1, "ci": list(result.ci)} for result in finished.evaluations],
    }


def _new_directory(recipe: str) -> Path:
    """runs/NAME-DATE-TIME, made unique by the process id should two start in one second."""
    name = f"{Path(recipe).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    path = Path("runs") / name
    return path if not path.exists() else Path("runs") / f"{name}-{os.getpid()}"
