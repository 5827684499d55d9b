"""`slipstream bench overlap`: what asynchrony is worth where verdicts take their time: sync, lagged and in flight, one workload."""

import asyncio
import json
import math
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

MODES = (("sync", 0), ("lagged", 2), ("inflight", 2), ("inflight", 4))
WARM_STEPS = 3  # of each run, before it is measured: they compile
BINS = 24


def overlap_command(
    steps: Annotated[int, typer.Option(min=4, help="Learner steps measured in each mode.")] = 30,
    median: Annotated[float, typer.Option(min=0.0, help="Seconds that half of the verdicts take at most; none: 0.")] = 0.5,
    sigma: Annotated[float, typer.Option(min=0.0, help="Of the lognormal: 1 puts one verdict in a hundred above ten medians.")] = 1.0,
    picture: Annotated[Path | None, typer.Option(help="SVG file to draw trained tokens over time to.")] = None,
) -> None:
    """The quickstart's sums with an environment whose latency is lognormal: step time, idle shares and tokens/s in each mode.

    Example: slipstream bench overlap --picture overlap.svg
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.warm import warm_policy
    from slipstream.config.load import load_config
    from slipstream.runtime.devices import configure_jax

    configure_jax()
    short = "warm_start.stages=[{steps=40,worked_share=1.0}]"  # the skill does not matter here
    configs = {
        name(kind, eta): load_config("quickstart", [f"mode.kind={kind}", f"mode.eta={eta}", f"run.steps={WARM_STEPS + steps}", short])
        for kind, eta in MODES
    }
    policy = warm_policy(next(iter(configs.values())))
    rows = [_tell(_measure(label, config, policy, median, sigma)) for label, config in configs.items()]
    for row in rows:
        row["speedup"] = round(rows[0]["step_seconds"] / row["step_seconds"], 2)
    if picture:
        picture.write_text(_picture(rows))
    latency = {"median_seconds": median, "sigma": sigma, "p99_seconds": round(median * math.exp(2.326 * sigma), 2)}
    shown = [{key: value for key, value in row.items() if key != "times"} for row in rows]
    print(json.dumps({"benchmark": "overlap", "steps": steps, "latency": latency, "rows": shown, "machine": machine()}))


def name(kind: str, eta: int) -> str:
    return f"{kind}({eta})" if eta else kind


class SlowTask:
    """A task of one turn whose verdict comes after a lognormal wait, the same for the same sample of the same prompt."""

    def __init__(self, task: Any, median: float, sigma: float) -> None:
        self._task, self._median, self._sigma = task, median, sigma
        self._made = Counter[str]()

    @property
    def limits(self) -> Any:
        from slipstream.envs.environment import Limits

        return Limits(turns=1, step_s=600.0, episode_s=600.0)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._task, attribute)

    def environment(self, prompt: Any) -> "SlowVerdict":
        from slipstream.core.rng import generator

        self._made[prompt.id] += 1
        drawn = generator(0, "bench overlap", prompt.id, self._made[prompt.id]).lognormal(0.0, self._sigma)
        return SlowVerdict(self._task, prompt, self._median * drawn)

    def transcript(self, prompt: Any) -> Any:
        from slipstream.envs.environment import PlainTranscript

        return PlainTranscript(self._task.tokenizer)


class SlowVerdict:
    """The environment of one sample."""

    def __init__(self, task: Any, prompt: Any, seconds: float) -> None:
        self._task, self._prompt, self._seconds = task, prompt, seconds

    def start(self, prompt: Any) -> None: ...

    async def step(self, turn: Any) -> Any:
        await asyncio.sleep(self._seconds)
        return self._task.grade(self._prompt, turn.text)

    def close(self) -> None: ...


def _measure(label: str, config: Any, policy: Any, median: float, sigma: float) -> dict[str, Any]:
    from dataclasses import replace

    from slipstream.core.clock import SystemClock
    from slipstream.runtime.assembly import assemble
    from slipstream.runtime.embedded import Embedded
    from slipstream.runtime.stop import StopFlag
    from slipstream.telemetry.events import NullEvents
    from slipstream.telemetry.run_directory import RunDirectory

    slow = replace(policy, task=SlowTask(policy.task, median, sigma)) if median else policy
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", "")
        parts = assemble(config, slow, directory, SystemClock(), NullEvents(), "bench")
        parts.learner.begin_reinforcement()
        parts.store.publish(parts.learner.weights())
        embedded = Embedded(parts.roles, StopFlag(), lambda result: None)
        embedded.start()
        rows = []
        while parts.learner.version < config.run.steps:
            report = embedded.next_step()
            assert report is not None
            rows.append(report.metrics)
        embedded.finish()
        parts.ledger.close()
    return _figures(label, rows)


def _figures(label: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    settled = rows[WARM_STEPS:]
    begin = rows[WARM_STEPS - 1]["time"]
    seconds = settled[-1]["time"] - begin
    return {
        "mode": label,
        "step_seconds": round(seconds / len(settled), 3),
        "tokens_per_second": round(sum(row["tokens"] for row in settled) / seconds, 1),
        "sampler_idle": round(statistics.mean(row["sampler_idle"] for row in settled), 3),
        "learner_idle": round(statistics.mean(row["learner_idle"] for row in settled), 3),
        "age_mean": round(statistics.mean(row["age_mean"] for row in settled), 2),
        "age_max": max(row["age_max"] for row in settled),
        "times": [(row["time"] - begin, row["tokens"]) for row in settled],
    }


def _tell(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{key} {value}" for key, value in row.items() if key != "times"), file=sys.stderr)
    return row


def _picture(rows: list[dict[str, Any]]) -> str:
    """Tokens trained on by each moment, and the time of each step."""
    from slipstream.telemetry.picture import Line, Panel, picture

    longest = max(row["times"][-1][0] for row in rows)
    width = longest / BINS
    trained, steps = [], []
    for row in rows:
        ends = [time for time, _ in row["times"]]
        sums = [sum(tokens for time, tokens in row["times"] if time <= moment * width) for moment in range(BINS + 1)]
        over = [(moment - 1) * width > ends[-1] for moment in range(BINS + 1)]
        values = tuple(None if ended else total / 1e3 for total, ended in zip(sums, over, strict=True))
        trained.append(Line(name=row["mode"], values=values))
        steps.append(Line(name=row["mode"], values=tuple(end - before for end, before in zip(ends, [0.0, *ends], strict=False))))

    def panel(title: str, x_name: str, x_values: list[str], y_name: str, lines: list[Any]) -> Any:
        top = max(value for line in lines for value in line.values if value is not None) * 1.05
        return Panel(title=title, x_name=x_name, x_values=tuple(x_values), y_name=y_name, y_range=(0.0, top), lines=tuple(lines))

    return picture(
        "Sync against lagged and in flight, lognormal latency of verdicts",
        [
            panel("trained on, over time", "seconds", [f"{moment * width:.0f}" for moment in range(BINS + 1)], "thousand tokens", trained),
            panel("time of each step", "step", [str(index + 1) for index in range(len(rows[0]["times"]))], "seconds", steps),
        ],
    )
