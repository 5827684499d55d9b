"""`slipstream bench quickstart`: the first command, measured: seconds to the first step, tokens/s, idle shares, what it learned."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer


def quickstart_command(
    mode: Annotated[list[str] | None, typer.Option(help="sync, lagged or inflight; repeatable; default inflight.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seeds, one run each; repeatable; default 0.")] = None,
    steps: Annotated[int, typer.Option(help="Learner steps of each run.")] = 100,
) -> None:
    """Run the quickstart recipe and print its figures.

    Example: slipstream bench quickstart --mode sync --mode lagged --mode inflight
    """
    from slipstream.cli.bench.machine import machine

    rows = [_run(kind, number, steps) for kind in mode or ["inflight"] for number in (seed if seed else [0])]
    print(json.dumps({"benchmark": "quickstart", "rows": rows, "machine": machine()}))


def _run(kind: str, seed: int, steps: int) -> dict[str, Any]:
    from slipstream.config.load import load_config
    from slipstream.runtime.opening import open_run
    from slipstream.runtime.stop import StopFlag
    from slipstream.runtime.train import train
    from slipstream.telemetry.jsonl import read_jsonl
    from slipstream.telemetry.progress import QuietProgress

    eta = {"sync": 0, "lagged": 1, "inflight": 2}.get(kind, 1)
    config = load_config("quickstart", [f"mode.kind={kind}", f"mode.eta={eta}", f"run.seed={seed}", f"run.steps={steps}"])
    started, cpu = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        _, directory = open_run(config, Path(folder) / "run", resume=False)
        finished = train(config, directory, QuietProgress(), StopFlag())
        events = read_jsonl(directory.events)
        digest = _final_weights(directory.checkpoints)
        directory.release()
    row = _figures(finished, events) | {
        "mode": kind,
        "eta": eta,
        "seed": seed,
        "wall_seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "final_weights": digest,
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr)
    return row


def _figures(finished, events: list[dict[str, Any]]) -> dict[str, Any]:
    metrics, evaluations = finished.metrics, finished.evaluations
    warm = [row["time"] for row in events if row["kind"] == "warm_start"]
    settled = metrics[len(metrics) // 4 :]  # after compilation
    seconds = settled[-1]["time"] - settled[0]["time"]

    def mean(key: str) -> float:
        return round(sum(row[key] for row in settled) / len(settled), 3)

    return {
        "to_first_warm_step_s": round(warm[0], 2) if warm else None,
        "to_first_rl_step_s": round(metrics[0]["time"], 2),
        "rl_seconds": round(metrics[-1]["time"] - (warm[-1] if warm else 0.0), 2),
        "trained_tokens_per_s": round(sum(row["tokens"] for row in settled[1:]) / seconds) if seconds > 0 else None,
        "sampled_tokens_per_s": round(mean("sampler_tokens_per_second")),
        "sampler_idle": mean("sampler_idle"),
        "learner_idle": mean("learner_idle"),
        "age_mean": mean("age_mean"),
        "age_max": max(row["age_max"] for row in metrics),
        "mixed_version_share": mean("mixed_version_share"),
        "mismatch_abs_max": max((row["mismatch_abs_max"] for row in metrics if row["mismatch_abs_max"] is not None), default=None),
        "greedy_first": evaluations[0].pass_at_1,
        "greedy_at": {str(result.step): result.pass_at_1 for result in evaluations},
        "reward_first": round(metrics[0]["reward_mean"], 3),
        "reward_last10": round(sum(row["reward_mean"] for row in metrics[-10:]) / len(metrics[-10:]), 3),
    }


def _final_weights(checkpoints: Path) -> str:
    """Hash of the last checkpoint's parameters: equal for bit-equal runs."""
    newest = max(path for path in checkpoints.iterdir() if path.name.isdigit())
    return json.loads((newest / "manifest.json").read_text())["files"]["params.safetensors"]["sha256"][:16]
