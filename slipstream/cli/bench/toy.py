"""The toy task of the learner's benchmarks: the quickstart's sums from one warm start, sampled at an exact lag, in one thread."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = 40


def toy_config(objective: Mapping[str, Any], lag: int, seed: int, *overrides: str):
    """A run of 40 steps, four optimizer steps each, of which batch t is sampled wholly by version t - lag."""
    from slipstream.config.load import load_config
    from slipstream.config.schema import ObjectiveSection

    settings = [
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
        *overrides,
    ]
    config = load_config("quickstart", settings)
    # uncorrected objectives on stale data, and unbounded weights, are refused for runs; here they are what is measured
    return config.model_copy(update={"objective": ObjectiveSection.model_validate(objective)})


def toy_run(config, policy, evaluated: Sequence[int]) -> dict[str, Any]:
    """Sample what may be sampled, then learn, through the real ledger, engine and learner; greedy at the versions `evaluated`."""
    from slipstream.core.clock import SystemClock
    from slipstream.runtime.assembly import assemble
    from slipstream.telemetry.events import NullEvents
    from slipstream.telemetry.run_directory import RunDirectory

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", "")
        parts = assemble(config, policy, directory, SystemClock(), NullEvents(), "bench")
        parts.learner.begin_reinforcement()
        parts.store.publish(parts.learner.weights())
        greedy, rows = {}, []
        while parts.learner.version < STEPS:
            if parts.learner.version in evaluated:
                greedy[str(parts.learner.version)] = round(parts.roles.evaluate(parts.learner.weights()).pass_at_1, 4)
            while parts.dispatch.turn() or parts.dispatch.episodes.unanswered:
                pass
            report = parts.roles.learn.turn()
            assert report is not None, "the sampler is idle and the batch is not complete"
            rows.append(report.metrics)
        greedy[str(STEPS)] = round(parts.roles.evaluate(parts.learner.weights()).pass_at_1, 4)
        parts.dispatch.close(drain=False)
        parts.ledger.close()
    return {
        "greedy": greedy,
        "pass@1": round(_sampled_reward(config, policy, parts.learner.weights()), 4),
        "age_max": max(row["age_max"] for row in rows),
        "age_mean": round(sum(row["age_mean"] for row in rows) / len(rows), 3),
        "clip_fraction_max": round(max(row.get("clip_fraction") or 0.0 for row in rows), 4),
        "grad_norm_max": round(max(row["grad_norm"] for row in rows), 2),
        "seconds": round(time.monotonic() - started, 2),
    }


def _sampled_reward(config, policy, weights) -> float:
    """pass@1 at temperature 1 on the held-out prompts, under fixed draws."""
    from slipstream.core.clock import SystemClock
    from slipstream.core.records import SampleRequest
    from slipstream.core.rng import stream_seed
    from slipstream.loop.evaluate import draw_all
    from slipstream.runtime.assembly import build_engine

    task = policy.task
    engine = build_engine(config, policy, SystemClock(), "bench", config.sampling.slots)
    engine.load(weights)
    prompts = task.held_out(512)
    requests = [
        SampleRequest(
            key=(str(index), 0),
            prompt_ids=prompt.token_ids,
            seed=stream_seed(config.run.seed, "bench", prompt.id),
            max_new_tokens=config.sampling.max_new_tokens,
            temperature=1.0,
            stop_ids=task.tokenizer.stop_ids,
        )
        for index, prompt in enumerate(prompts)
    ]
    texts = [task.tokenizer.decode(sample.completion_ids.tolist()) for sample in draw_all(engine, requests)]
    return sum(task.grade(prompt, text).reward or 0.0 for prompt, text in zip(prompts, texts, strict=True)) / len(prompts)
