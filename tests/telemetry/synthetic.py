"""A plausible run on disk, made up: two samplers on a toy sum task, written with the real writers.

The shapes are those of a real run (tails of long samples, loads in the middle of samples, a rising reward), the numbers are not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.clock import ManualClock
from slipstream.core.records import Fate, FinishReason, Outcome, OutcomeKind, Rollout
from slipstream.core.rng import generator
from slipstream.telemetry.events import EventLog
from slipstream.telemetry.jsonl import JsonlWriter
from slipstream.telemetry.rollouts import write_rollouts
from slipstream.telemetry.run_directory import RunDirectory

SAMPLERS = ("sampler-0", "sampler-1")
TOKEN_S = 0.009  # one decode step
STEP_S = 0.55  # one learner step
LOAD_DELAY_S = (0.05, 0.3)  # from publish to load, a sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How big a made-up run is."""

    steps: int = 60
    rollouts_per_step: int = 256
    slots: int = 32
    mode: str = "inflight"
    eta: int = 2
    seed: int = 7


@dataclass(slots=True)
class Timed:
    """A sample's text and its place in time, before the versions of its tokens are known."""

    sampler: int
    slot: int
    start_s: float
    text: str
    prompt: str
    answer: str
    worked: bool
    right: bool

    @property
    def end_s(self) -> float:
        return self.start_s + TOKEN_S * (len(self.text) + 1)


def make_run(path: Path, shape: Shape | None = None) -> RunDirectory:
    """Write a whole run under `path`."""
    shape = shape or Shape()
    run = RunDirectory.create(path, config_toml(shape))
    rng = generator(shape.seed, "synthetic")
    clock = ManualClock(2.0)
    metrics, evaluations, rows = JsonlWriter(run.metrics), JsonlWriter(run.evaluations), JsonlWriter(run.events)
    events = EventLog(rows, clock)
    events.emit("runtime", "run_started", run_id="5ca1ab1e0000", recipe="quickstart", mode=shape.mode, eta=shape.eta, seed=shape.seed)
    for step in range(0, 201, 20):
        events.emit("learner", "warm_start", step=step, total=200, loss=3.2 * np.exp(-step / 60) + 0.4)
    evaluations.write(evaluation(0, 2.0, rng, shape))
    free = np.full((len(SAMPLERS), shape.slots), 2.0)  # when each slot is free
    publishes = [0.0]  # publishes[v] = when version v existed
    for step in range(shape.steps):
        if shape.mode == "sync":
            free[:] = max(2.0, publishes[-1] + 0.1)
        batch = next_batch(shape, step, free, rng)
        ready = max(timed.end_s for timed in batch)
        begin = max(ready, publishes[-1])
        end = begin + STEP_S * rng.uniform(0.9, 1.15)
        rollouts = [finish(timed, number, step, publishes, shape, rng) for number, timed in enumerate(batch)]
        fate_of_step(run, events, metrics, step, rollouts, publishes[-1] if step else 2.0, begin, end, rng)
        publishes.append(end)
        clock.advance(max(0.0, end - clock.now_s()))
        if (step + 1) % 20 == 0:
            evaluations.write(evaluation(step + 1, end + 0.5, rng, shape))
            events.span("evaluator", "evaluate", end + 0.1, end + 0.5, step=step + 1)
    for name, ratio in zip(SAMPLERS, (1.0002, 0.951), strict=False):
        events.emit("coordinator", "ratio", worker=name, version=3, ratio=ratio, tokens=1000)
    events.emit("coordinator", "quarantined", worker=SAMPLERS[1], version=3, gap=None, cause="its mean importance ratio is 0.951")
    events.emit("runtime", "run_finished", steps=shape.steps)
    for writer in (metrics, evaluations, rows):
        writer.close()
    return run


def config_toml(shape: Shape) -> str:
    return (
        f'[run]\nrecipe = "quickstart"\nseed = {shape.seed}\nsteps = {shape.steps}\n\n'
        f'[mode]\nkind = "{shape.mode}"\neta = {shape.eta}\n\n[sampling]\nslots = {shape.slots}\ntemperature = 1.0\n'
    )


def next_batch(shape: Shape, step: int, free: np.ndarray, rng: np.random.Generator) -> list[Timed]:
    """The next samples to finish, slots working back to back."""
    progress = 1 / (1 + np.exp(-(step - 0.4 * shape.steps) / (0.12 * shape.steps)))
    batch = []
    for _ in range(shape.rollouts_per_step):
        sampler, slot = np.unravel_index(int(free.argmin()), free.shape)
        timed = make_text(int(sampler), int(slot), float(free[sampler, slot]), progress, rng)
        free[sampler, slot] = timed.end_s + 0.004
        batch.append(timed)
    return batch


def make_text(sampler: int, slot: int, start_s: float, progress: float, rng: np.random.Generator) -> Timed:
    a, b = (int(value) for value in rng.integers(11, 99, 2))
    worked = bool(rng.random() < 0.25 + 0.65 * progress)
    right = bool(rng.random() < (0.55 + 0.43 * progress if worked else 0.12 + 0.2 * progress))
    answer = a + b
    said = answer if right else answer + int(rng.choice([-10, -1, 1, 10]))
    if worked:
        tail = " check:" * int(rng.geometric(0.35) - 1)
        text = f"{a % 10}+{b % 10}={a % 10 + b % 10}, {a // 10 * 10}+{b // 10 * 10}={(a // 10 + b // 10) * 10},{tail} so {said}."
    else:
        text = f"{said}."
    return Timed(sampler, slot, start_s, text, f"{a}+{b}=", str(answer), worked, right)


def finish(timed: Timed, number: int, step: int, publishes: list[float], shape: Shape, rng: np.random.Generator) -> Rollout:
    """The rollout, with the version that was loaded at each token's time."""
    tokens = len(timed.text) + 1
    times = timed.start_s + TOKEN_S * np.arange(tokens)
    loads = np.array(publishes[1:]) + LOAD_DELAY_S[timed.sampler]
    versions = np.searchsorted(loads, times, side="right")
    versions = np.clip(versions, max(0, step - shape.eta), step) if shape.mode == "inflight" else np.full(tokens, step)
    parsed = rng.random() > 0.02
    kind = (OutcomeKind.VALUE if timed.right else OutcomeKind.WRONG) if parsed else OutcomeKind.UNPARSEABLE
    ticket = step * (shape.rollouts_per_step // 8) + number // 8
    return Rollout(
        run_id="5ca1ab1e0000",
        lineage=0,
        ticket_id=f"t{ticket:08d}",
        ticket_index=ticket,
        prompt_id=f"sums/{ticket}",
        group_id=f"g{ticket:08d}",
        sample_index=number % 8,
        seed=int(rng.integers(0, 2**63)),
        prompt_ids=np.array([ord(letter) for letter in timed.prompt], np.int32),
        completion_ids=np.array([ord(letter) for letter in timed.text] + [0], np.int32),
        logprobs=-rng.exponential(0.3, tokens).astype(np.float32),
        versions=versions.astype(np.int32),
        loss_mask=np.ones(tokens, bool),
        finish_reason=FinishReason.STOP,
        outcome=Outcome(
            kind=kind,
            reward=float(kind is OutcomeKind.VALUE),
            format_ok=kind is not OutcomeKind.UNPARSEABLE,
            style="worked" if timed.worked else "direct",
            detail=f"wanted {timed.answer}",
        ),
        prompt_text=timed.prompt,
        completion_text=timed.text,
        answer=timed.answer,
        sampler_id=SAMPLERS[timed.sampler],
        sampler_class="cpu/float32",
        weight_digest="",
        slot=timed.slot,
        claimed_s=timed.start_s - 0.01,
        started_s=timed.start_s,
        finished_s=timed.end_s,
    )


def fate_of_step(
    run: RunDirectory,
    events: EventLog,
    metrics: JsonlWriter,
    step: int,
    rollouts: list[Rollout],
    previous_s: float,
    begin: float,
    end: float,
    rng: np.random.Generator,
) -> None:
    """Everything that one learner step leaves behind."""
    rewards = np.array([rollout.outcome.reward for rollout in rollouts])
    write_rollouts(run.rollouts, step, rollouts, Fate.TRAINED, list(rewards - rewards.mean()))
    phases = {"wait": (previous_s, begin), "pack": (begin, begin + 0.05), "step": (begin + 0.05, end - 0.03), "publish": (end - 0.03, end)}
    if (step + 1) % 20 == 0:
        phases["checkpoint"] = (end, end + 0.25)
    for phase, (start_s, end_s) in phases.items():
        events.span("learner", phase, start_s, end_s, step=step + 1)
    events.emit("learner", "publish", version=step + 1)
    for sampler, delay in zip(SAMPLERS, LOAD_DELAY_S, strict=True):
        events.emit(sampler, "load", version=step + 1)
        events.span(sampler, "load", end + delay, end + delay + 0.02, version=step + 1)
    metrics.write(metrics_row(step, rollouts, end, end - previous_s, {name: b - a for name, (a, b) in phases.items()}, rng))


def metrics_row(
    step: int, rollouts: list[Rollout], end: float, interval_s: float, phases: dict[str, float], rng: np.random.Generator
) -> dict[str, Any]:
    lags = np.concatenate([step - rollout.versions for rollout in rollouts])
    ages = np.array([step - rollout.age_version for rollout in rollouts])
    tokens = len(lags)
    rewards = np.array([rollout.outcome.reward for rollout in rollouts])
    noise = rng.normal(0, 1, 8)
    return {
        "step": step + 1,
        "version": step + 1,
        "time": end,
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
        "loss": -0.02 + 0.01 * noise[0],
        "tokens": tokens,
        "tokens_per_second": tokens / phases["step"],
        "sampler_tokens_per_second": tokens / interval_s,
        "ratio_mean": 1 + 0.002 * noise[1],
        "ratio_std": 0.05 + 0.01 * abs(noise[2]),
        "ess": 0.985 + 0.004 * noise[3],
        "clip_fraction": 0.01,
        "mismatch_abs_max": 2.4e-7 if step % 3 else None,
        "age_max": ages.max(),
        "age_mean": ages.mean(),
        "lag_mean": lags.mean(),
        "mixed_version_share": np.mean([len(set(rollout.versions.tolist())) > 1 for rollout in rollouts]),
        "entropy": 0.9 * np.exp(-step / 50) + 0.02 * noise[4],
        "kl": 0.0004 * step + 0.001 * abs(noise[5]),
        "grad_norm": 0.8 + 0.15 * abs(noise[6]),
        "update_norm": 0.004,
        "lr": 3e-4,
        "truncated_share": 0.0,
        "completion_tokens_mean": tokens / len(rollouts),
        "format_ok": np.mean([rollout.outcome.format_ok for rollout in rollouts]),
        "style_share": np.mean([rollout.outcome.style == "worked" for rollout in rollouts]),
        "zero_variance_groups": 0.2,
        "refilled_groups": step % 4,
        "turns_mean": 1 + step / 60,
        "call_share": step / 60,
        "failed_call_share": 0.1 if step else None,
        "environment_token_share": 0.2 * step / 60,
        "side_turns_mean": 0.5 * step / 60,
        "reused_token_share": 0.4 * step / 60,
        "outcomes": {
            **{kind.value: sum(rollout.outcome.kind is kind for rollout in rollouts) for kind in OutcomeKind},
            "timeout": step % 3,
            "infrastructure": int(step == 5),
        },
        "padding_waste": 0.12,
        "sampler_idle": 0.03 + 0.01 * abs(noise[7]),
        "learner_idle": phases["wait"] / interval_s,
        "phase_seconds": phases,
    }


def evaluation(step: int, time_s: float, rng: np.random.Generator, shape: Shape) -> dict[str, Any]:
    n = 256
    progress = 1 / (1 + np.exp(-(step - 0.4 * shape.steps) / (0.12 * shape.steps)))
    share = 0.22 + 0.72 * progress + rng.normal(0, 0.01)
    margin = 1.96 * np.sqrt(share * (1 - share) / n)
    texts = [make_text(0, 0, 0.0, progress, rng) for _ in range(8)]
    samples = [{"prompt": t.prompt, "completion": t.text, "answer": t.answer, "reward": float(t.right)} for t in texts]
    return {
        "step": step,
        "task": "sums",
        "n": n,
        "pass@1": share,
        "ci": [share - margin, share + margin],
        "pass@4": 1 - (1 - share) ** 2,
        "ci@4": [share, 1.0],
        "n@4": n,
        "time": time_s,
        "style_share": 0.25 + 0.65 * progress,
        "completion_tokens": 12 + 14 * progress,
        "samples": samples,
    }
