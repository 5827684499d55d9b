"""The sampler's self-test at the start of every run, after the first load and before the first ticket. Called by `runtime.learning`."""

from dataclasses import asdict
from math import isfinite

import numpy as np

from slipstream.config.schema import RunConfig
from slipstream.core.errors import RunFailed
from slipstream.engine.engine import Engine
from slipstream.envs.task import Task
from slipstream.loop.conformance import QUICK, Finding, check_sampler, failures
from slipstream.models.spec import ModelSpec
from slipstream.telemetry.events import Events
from slipstream.train.learner import Learner

PROMPTS = 2
TOLERANCE = {"f32": 1e-3, "bf16": 0.1, "int8": 0.2, "fp8": 0.4}  # nats, mean difference of log-probs at temperature 1


def check_before_run(config: RunConfig, spec: ModelSpec, task: Task, sampler: Engine, learner: Learner, events: Events) -> list[Finding]:
    """Load the learner's weights into the idle sampler, compile its programs and test it; each finding is an event `conformance`.

    The test has seeds of its own and leaves the sampler idle, so the run draws what it would have drawn without. Raises RunFailed
    that names what failed.
    """
    weights = learner.weights()
    sampler.load(weights)
    events.emit(sampler.id, "load", version=weights.version)
    events.emit(sampler.id, "warm_up", programs=list(sampler.warm_up()))
    findings = check_sampler(
        sampler,
        lambda sequences, temperature: learner.score(sequences, weights, temperature),
        prompts=_prompts(config, task),
        known_tokens=spec.vocab if spec.known_tokens is None else spec.known_tokens,
        seed=config.run.seed,
        temperatures=(0.5, config.sampling.temperature),
        tolerance=_tolerance(config),
        effort=QUICK,
    )
    for finding in findings:
        events.emit(sampler.id, "conformance", **{name: _plain(value) for name, value in asdict(finding).items()})
    if failed := failures(findings):
        raise RunFailed(f"{sampler.id} fails its self-test, so nothing it draws can be trained on; {failed}")
    return findings


def _prompts(config: RunConfig, task: Task) -> list[np.ndarray]:
    """A whole prompt and half of another, where a model is less sure how to go on; as much of them as leaves room for the samples."""
    room = task.max_prompt_tokens + config.sampling.max_new_tokens - QUICK.new_tokens
    found = [task.prompt(index).token_ids[-room:] for index in range(PROMPTS)]
    return [found[0], *(ids[: (len(ids) + 1) // 2] for ids in found[1:])]


def _tolerance(config: RunConfig) -> float:
    """Exact arithmetic is held to what it promises: not one bit."""
    if config.model.numerics == "exact":
        return 0.0
    return max(TOLERANCE[config.sampling.precision], TOLERANCE[config.model.learner_precision])


def _plain(value: object) -> object:
    """What JSON has: infinity is not among it."""
    return None if isinstance(value, float) and not isfinite(value) else value
