"""`slipstream bench staleness`: objectives against exact lags on the quickstart's task, with thresholds that see a broken correction.

Batch t is sampled wholly by version t - lag (the lagged mode), four optimizer steps a batch, 40 batches. Uncorrected
objectives decay or stall with lag, corrected ones do not: the shape of AReaL's ablation (arXiv 2505.24298) in seconds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

EVALUATED = (5, 10, 20, 40)  # versions with a held-out evaluation
STEPS = 40
LOST = 0.15  # what a corrected objective may lose at lag 16 against lag 0; measured 0.08 at most
LEARNT = 0.85  # held-out greedy that fresh data reach in 40 versions
STALLED = 0.5  # naive ppo at lag 16 is below this at version 10; measured 0.00
QUICK = tuple((objective, lag) for lag in (0, 16) for objective in ("ppo", "reinforce_is", "decoupled_ppo"))
FULL = tuple((objective, lag) for lag in (0, 1, 4, 16) for objective in ("reinforce", "ppo", "reinforce_is", "decoupled_ppo"))


def staleness_command(
    quick: Annotated[bool, typer.Option("--quick", help="Lags 0 and 16, three objectives.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the warm start and the data.")] = 1,
) -> None:
    """Objectives against staleness on the toy task; exit 1 when a threshold fails.

    Example: slipstream bench staleness --quick
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.runtime.devices import configure_jax

    configure_jax()
    started, cpu = time.monotonic(), time.process_time()
    rows = []
    for row in _settings(QUICK if quick else FULL, seed):
        rows.append(row)
        greedy = "  ".join(f"v{version} {value:.3f}" for version, value in row["greedy"].items())
        name = f"{row['objective']:<14} lag {row['lag']:>2}"
        print(f"{name}  greedy {greedy}  pass@1 {row['pass@1']:.3f}  age max {row['age_max']}  {row['seconds']:.1f} s", file=sys.stderr)
    failures = failed_thresholds({(row["objective"], row["lag"]): row for row in rows})
    total = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    print(json.dumps({"benchmark": "staleness", "seed": seed, "rows": rows, "failures": failures, **total, "machine": machine()}))
    if failures:
        for failure in failures:
            print(f"slipstream: threshold failed: {failure}", file=sys.stderr)
        raise typer.Exit(1)


def failed_thresholds(rows: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    """What the figures should show and do not. Wide bounds for one seed; that naive ppo must stall proves the test can fail."""
    found = []
    for objective in ("decoupled_ppo", "reinforce_is"):
        fresh, stale = rows[objective, 0], rows[objective, 16]
        for name, new, old in (
            ("greedy at version 10", fresh["greedy"]["10"], stale["greedy"]["10"]),
            ("pass@1 at version 40", fresh["pass@1"], stale["pass@1"]),
        ):
            if old < new - LOST:
                found.append(f"{objective} at lag 16: {name} is {old:.3f}, against {new:.3f} on fresh data; at most {LOST} may be lost")
    if rows["decoupled_ppo", 0]["greedy"]["40"] < LEARNT:
        found.append(f"decoupled_ppo at lag 0: greedy {rows['decoupled_ppo', 0]['greedy']['40']:.3f} at version 40, want at least {LEARNT}")
    if rows["ppo", 16]["greedy"]["10"] > STALLED:
        found.append(f"ppo at lag 16 should stall: greedy {rows['ppo', 16]['greedy']['10']:.3f} at version 10, want at most {STALLED}")
    if rows["decoupled_ppo", 0]["greedy"] != rows["ppo", 0]["greedy"]:
        found.append("decoupled_ppo and ppo differ at lag 0, where they are the same loss")
    return found


def _settings(settings: tuple[tuple[str, int], ...], seed: int) -> Iterator[dict[str, Any]]:
    from slipstream.cli.bench.warm import warm_policy

    policy = warm_policy(_config("decoupled_ppo", 0, seed))
    for objective, lag in settings:
        yield _run(objective, lag, seed, policy)


def _config(objective: str, lag: int, seed: int):
    from slipstream.config.load import load_config

    overrides = [
        # working starts rarer than in the quickstart, so that the old policy's trust region is far from where to go
        "warm_start.stages=[{steps=350,worked_share=1.0},{steps=70,worked_share=0.1}]",
        f"run.seed={seed}",
        f"run.steps={STEPS}",
        f"mode.kind={'lagged' if lag else 'sync'}",
        f"mode.eta={lag}",
        "batch.minibatches=4",
        "batch.rows_per_microbatch=32",
        "sampling.slots=64",
        "optimizer.learning_rate=1e-4",
        "optimizer.warmup_steps=4",
    ]
    config = load_config("quickstart", overrides)
    # the uncorrected objective on stale data is refused for runs; here it is what is measured
    return config.model_copy(update={"objective": config.objective.model_copy(update={"name": objective})})


def _run(objective: str, lag: int, seed: int, policy) -> dict[str, Any]:
    """One setting, in one thread: sample what may be sampled, then learn, through the real ledger, engine and learner."""
    from slipstream.core.clock import SystemClock
    from slipstream.runtime.assembly import assemble
    from slipstream.telemetry.events import NullEvents
    from slipstream.telemetry.run_directory import RunDirectory

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", "")
        parts = assemble(_config(objective, lag, seed), policy, directory, SystemClock(), NullEvents(), "bench")
        parts.learner.begin_reinforcement()
        parts.store.publish(parts.learner.weights())
        greedy, rows = {}, []
        while parts.learner.version < STEPS:
            while parts.roles.dispatch.turn():
                pass
            report = parts.roles.learn.turn()
            assert report is not None, "the sampler is idle and the batch is not complete"
            rows.append(report.metrics)
            if parts.learner.version in EVALUATED:
                greedy[str(parts.learner.version)] = round(parts.roles.evaluate(parts.learner.weights()).pass_at_1, 4)
        parts.ledger.close()
    return {
        "objective": objective,
        "lag": lag,
        "greedy": greedy,
        "pass@1": round(_sampled_reward(policy, parts.learner.weights(), seed), 4),
        "age_max": max(row["age_max"] for row in rows),
        "age_mean": round(sum(row["age_mean"] for row in rows) / len(rows), 3),
        "clip_fraction_max": round(max(row["clip_fraction"] for row in rows), 4),
        "grad_norm_max": round(max(row["grad_norm"] for row in rows), 2),
        "seconds": round(time.monotonic() - started, 2),
    }


def _sampled_reward(policy, weights, seed: int) -> float:
    """pass@1 at temperature 1 on the held-out prompts, under fixed draws."""
    from slipstream.core.clock import SystemClock
    from slipstream.core.records import SampleRequest
    from slipstream.core.rng import stream_seed
    from slipstream.loop.evaluate import draw_all
    from slipstream.runtime.assembly import build_engine

    config = _config("decoupled_ppo", 0, seed)
    task = policy.task
    engine = build_engine(config, policy, SystemClock(), "bench", config.sampling.slots)
    engine.load(weights)
    prompts = task.held_out(512)
    requests = [
        SampleRequest(
            key=(str(index), 0),
            prompt_ids=prompt.token_ids,
            seed=stream_seed(seed, "bench", prompt.id),
            max_new_tokens=config.sampling.max_new_tokens,
            temperature=1.0,
            stop_ids=task.tokenizer.stop_ids,
        )
        for index, prompt in enumerate(prompts)
    ]
    texts = [task.tokenizer.decode(sample.completion_ids.tolist()) for sample in draw_all(engine, requests)]
    return sum(task.grade(prompt, text).reward or 0.0 for prompt, text in zip(prompts, texts, strict=True)) / len(prompts)
