"""`slipstream bench chaos`: a run of several processes to which a seeded schedule of faults is done; what it cost, and what still holds."""

import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.core.errors import UsageError

if TYPE_CHECKING:
    from slipstream.config.schema import RunConfig
    from slipstream.runtime.chaos.running import Disturbed

MODES = ("sync", "lagged", "inflight")
STEPS_PER_FAULT = 5
DISK_BYTES = 256 << 20
# the quickstart's sums, made so small that a step takes a moment
SETTINGS = (
    "model.source.kind=scratch",
    "model.source.d_model=32",
    "model.source.layers=1",
    "model.source.heads=2",
    "model.source.kv_heads=1",
    "model.source.d_ff=64",
    "task.kind=arithmetic",
    "task.digits=1",
    "warm_start.stages=[{steps=200,worked_share=1.0},{steps=20,worked_share=0.2}]",
    "warm_start.samples_per_step=16",
    "warm_start.warmup_steps=5",
    "sampling.slots=8",
    "sampling.max_new_tokens=12",
    "sampling.tokens_per_dispatch=2",
    "batch.prompts_per_step=4",
    "batch.group_size=4",
    "batch.row_tokens=32",
    "batch.rows_per_microbatch=8",
    "evaluation.every_steps=20",
    "evaluation.prompts=16",
    "checkpoint.every_steps=3",
)


def chaos_command(
    mode: Annotated[str, typer.Option(help="sync, laggedK or inflightETA, such as lagged1.")] = "lagged1",
    faults: Annotated[int, typer.Option(min=1, help="How many; every kind comes once before any comes again.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the schedule and of where each fault strikes.")] = 1,
    samplers: Annotated[int, typer.Option(min=1, help="Sampler processes.")] = 2,
    lease: Annotated[float, typer.Option(min=1.0, help="Seconds after which a role that is not heard of is gone.")] = 3.0,
    directory: Annotated[Path | None, typer.Option(help="Where to keep the runs; default: a temporary directory.")] = None,
) -> None:
    """Kill, freeze, tear, fill, corrupt, cut, silence and delay a run; then hold it against one left alone. Exit 1 where it differs.

    Example: slipstream bench chaos --mode inflight2 --faults 24
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.config.load import load_config

    kind, eta = _mode(mode)
    settings = [*SETTINGS, f"mode.kind={kind}", f"mode.eta={eta}", f"run.steps={STEPS_PER_FAULT * faults + 5}"]
    config = load_config("quickstart", settings)
    with ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if any((folder / name).exists() for name in ("undisturbed", "disturbed")):
            raise UsageError(f"--directory {folder} holds the runs of another benchmark; choose a new one")
        found = _measure(stack, config, folder, faults=faults, seed=seed, samplers=samplers, lease_s=lease)
    print(json.dumps({"benchmark": "chaos", "mode": mode, "seed": seed, "samplers": samplers, **found, "machine": machine()}))
    if found["broken"]:
        for line in found["broken"]:
            print(f"slipstream: {line}", file=sys.stderr)
        raise typer.Exit(1)


def _mode(mode: str) -> tuple[str, int]:
    name = mode.rstrip("0123456789")
    eta = mode[len(name) :]
    if name not in MODES or (name == "sync") != (not eta):
        raise UsageError(f"--mode {mode}: give sync, laggedK or inflightETA, such as lagged1 or inflight2")
    return name, int(eta or 0)


def _measure(
    stack: ExitStack, config: "RunConfig", folder: Path, *, faults: int, seed: int, samplers: int, lease_s: float
) -> dict[str, Any]:
    """An undisturbed run, a disturbed one, and what is to be said of the two."""
    from slipstream.runtime.chaos.faults import FaultKind, schedule
    from slipstream.runtime.chaos.promises import broken_promises, final_weights
    from slipstream.runtime.chaos.running import disturbed_run
    from slipstream.runtime.chaos.small_disk import NoSmallDisk, small_disk

    kinds, left_out, disk = list(FaultKind), "", None
    place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    try:
        disk = stack.enter_context(small_disk(place, DISK_BYTES))
    except NoSmallDisk as error:
        left_out = f"no disk is filled: one of its own cannot be made here ({error})"
        kinds.remove(FaultKind.FULL_DISK)
        _tell(left_out)
    plan = schedule(seed, faults, steps=config.run.steps, samplers=samplers, lease_s=lease_s, kinds=kinds)
    calm = disturbed_run(config, folder / "undisturbed", [], samplers=samplers, lease_s=lease_s, seed=seed, tell=_tell)
    try:
        hurt = disturbed_run(config, place / "run", plan, samplers=samplers, lease_s=lease_s, seed=seed, disk=disk, tell=_tell)
    finally:
        shutil.copytree(place / "run", folder / "disturbed")  # the disk goes with the benchmark
    broken = broken_promises(config, folder / "disturbed")
    if len(hurt.done) < len(plan):
        broken.append(f"the run ended before {len(plan) - len(hurt.done)} of {len(plan)} faults were done")
    if config.mode.kind != "inflight" and final_weights(calm.run_dir) != final_weights(folder / "disturbed"):
        broken.append("the final weights are not those of the undisturbed run")
    broken += _replayed(config, folder / "disturbed")
    _table(hurt, calm)
    return _figures(hurt, calm) | {"left_out": left_out, "broken": broken}


def _replayed(config: "RunConfig", run_dir: Path) -> list[str]:
    """The difference, where the run does not come out again as it was recorded."""
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.replay import Difference, Replay
    from slipstream.telemetry.run_directory import RunDirectory

    configure_jax()
    try:
        for _ in Replay(RunDirectory.open(run_dir), config, None).run():
            pass
    except Difference as difference:
        return [f"replayed, it differs: {difference}"]
    return []


def _figures(hurt: "Disturbed", calm: "Disturbed") -> dict[str, Any]:
    rows = [
        {
            "step": one.step,
            "kind": one.fault.kind,
            "target": one.fault.target,
            "detail": one.detail,
            "struck": one.struck,
            "recovery_seconds": one.recovery_s and round(one.recovery_s, 2),
        }
        for one in hurt.done
    ]
    return {
        "faults": rows,
        "deaths": hurt.deaths,
        "weights_faults": hurt.faults_told,
        "seconds": round(hurt.seconds, 1),
        "undisturbed_seconds": round(calm.seconds, 1),
        "slowdown": round(hurt.seconds / calm.seconds, 2),
    }


def _table(hurt: "Disturbed", calm: "Disturbed") -> None:
    """For people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("after step", "fault", "whom", "what happened", "seconds to a further step", title="Faults and recovery")
    for one in hurt.done:
        took = "the run had ended" if one.recovery_s is None else f"{one.recovery_s:.1f}"
        table.add_row(str(one.step), one.fault.kind, one.fault.target, one.detail if one.struck else "found nothing to hurt", took)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    console.print(table)
    slower = hurt.seconds / calm.seconds
    console.print(f"{hurt.seconds:.1f} s in all, {calm.seconds:.1f} s undisturbed: {slower:.2f} times as long", highlight=False)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
