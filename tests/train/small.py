"""A model, sequences and a configuration for learners that take milliseconds a step."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.config.schema import BatchSection, ModelSection, ObjectiveSection, OptimizerSection, RunConfig, SamplingSection
from slipstream.core.records import TrainingSequence
from slipstream.models.parameters import Params, declarations, from_leaves
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.train.learner import Learner

SPEC = ModelSpec(
    vocab=17, d_model=32, layers=1, heads=4, kv_heads=2, head_dim=8, d_ff=40, rope=RopeSpec(theta=1e4), norm_eps=1e-5, tied=True, context=64
)


@cache
def params(seed: int = 0, spec: ModelSpec = SPEC) -> Params:
    """Weights of the declared spread, from numpy: nothing to compile."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], fan_in: int) -> jnp.ndarray:
        return jnp.asarray(rng.normal(size=shape) * fan_in**-0.5 if fan_in else np.ones(shape), jnp.float32)

    return from_leaves(
        {d.path: draw(d.shape(spec), math.prod(spec.axis_size(axis) for axis in d.fan_in) if d.fan_in else 0) for d in declarations(spec)}
    )


def config(
    objective: str = "decoupled_ppo",
    *,
    minibatches: int = 1,
    row_tokens: int = 24,
    rows: int = 2,
    learning_rate: float = 1e-2,
    warmup_steps: int = 2,
    temperature: float = 1.0,
    learner_layers: str = "unroll",
) -> RunConfig:
    return RunConfig(
        model=ModelSection.model_validate({"learner_layers": learner_layers}),
        sampling=SamplingSection(temperature=temperature),
        batch=BatchSection(minibatches=minibatches, row_tokens=row_tokens, rows_per_microbatch=rows, partial_microbatches=0),
        objective=ObjectiveSection.model_validate({"name": objective}),
        optimizer=OptimizerSection(learning_rate=learning_rate, warmup_steps=warmup_steps),
    )


def learner(settings: RunConfig | None = None, seed: int = 0) -> Learner:
    """At version 0."""
    made = Learner(settings or config(), SPEC, params(seed))
    made.begin_reinforcement()
    return made


def sequence(rng: np.random.Generator, prompt: int, completion: int, advantage: float, spread: float = 0.3) -> TrainingSequence:
    """Random tokens; behaviour log-probs near those of a uniform policy."""
    tokens = prompt + completion
    mask = np.arange(tokens) >= prompt
    return TrainingSequence(
        token_ids=rng.integers(0, SPEC.vocab, tokens).astype(np.int32),
        loss_mask=mask,
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        behaviour_logprobs=np.where(mask, -np.log(SPEC.vocab) + spread * rng.normal(size=tokens), 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
    )


def batch(seed: int, count: int = 8) -> list[TrainingSequence]:
    """`count` sequences of 4 to 16 tokens with advantages of both signs."""
    rng = np.random.default_rng(seed)
    return [sequence(rng, int(rng.integers(1, 5)), int(rng.integers(3, 12)), float(rng.normal())) for _ in range(count)]


def assert_bit_equal(found: object, expected: object) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)
