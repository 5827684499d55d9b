"""A model, requests and runs small enough to sample thousands of tokens in a second."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from slipstream.core.clock import ManualClock
from slipstream.core.records import Sample, SampleRequest, WeightVersion
from slipstream.core.rng import stream_seed
from slipstream.engine.engine import Engine
from slipstream.models.parameters import Params, declarations, from_leaves
from slipstream.models.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(
    vocab=17,
    d_model=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    d_ff=40,
    rope=RopeSpec(theta=1e4),
    norm_eps=1e-5,
    tied=False,
    context=64,
)
STOP = 0
SLOTS, MAX_TOKENS, PER_DISPATCH = 4, 37, 3


@cache
def weights(version: int, spec: ModelSpec = SPEC) -> WeightVersion:
    """A policy version: unrelated weights for each number. From numpy, so that nothing is compiled."""
    rng = np.random.default_rng(version)

    def draw(shape: tuple[int, ...], fan_in: int) -> jnp.ndarray:
        return jnp.asarray(rng.normal(size=shape) * fan_in**-0.5 if fan_in else np.ones(shape), jnp.float32)

    found = {
        d.path: draw(d.shape(spec), math.prod(spec.axis_size(axis) for axis in d.fan_in) if d.fan_in else 0) for d in declarations(spec)
    }
    return WeightVersion(lineage=0, version=version, params=from_leaves(found))


def params(version: int, spec: ModelSpec = SPEC) -> Params:
    found = weights(version, spec).params
    assert isinstance(found, Params)
    return found


def engine(
    spec: ModelSpec = SPEC,
    *,
    slots: int = SLOTS,
    per_dispatch: int = PER_DISPATCH,
    max_tokens: int = MAX_TOKENS,
    **options: Any,
) -> Engine:
    """An engine with version 0 loaded."""
    made = Engine(spec, id="test", clock=ManualClock(), slots=slots, max_tokens=max_tokens, tokens_per_dispatch=per_dispatch, **options)
    made.load(weights(0, spec))
    return made


def request(
    name: str,
    prompt: Sequence[int] | np.ndarray,
    *,
    seed: int | None = None,
    new: int = 12,
    temperature: float = 1.0,
    stop_ids: tuple[int, ...] = (STOP,),
) -> SampleRequest:
    """A request whose random stream follows from its name unless a seed is given."""
    return SampleRequest(
        key=(name, 0),
        prompt_ids=np.array(prompt, np.int32),
        seed=stream_seed(0, "test", name) if seed is None else seed,
        max_new_tokens=new,
        temperature=temperature,
        stop_ids=stop_ids,
    )


def mixed_requests() -> list[SampleRequest]:
    """Lengths on both sides of the prefill buckets, several temperatures, limits and a shared prompt."""
    rng = np.random.default_rng(7)
    lengths, temperatures = [1, 2, 5, 15, 16, 17, 20, 25, 3, 3], [1.0, 0.7, 1.5, 0.0, 1.0, 2.0, 1.0, 0.5, 1.0, 1.0]
    made = [
        request(f"r{index}", rng.integers(1, SPEC.vocab, length), new=[12, 9, 4, 12][index % 4], temperature=temperature)
        for index, (length, temperature) in enumerate(zip(lengths, temperatures, strict=True))
    ]
    made[9] = replace(made[9], prompt_ids=made[8].prompt_ids)
    return made


def drain(running: Engine, requests: Iterable[SampleRequest] = ()) -> dict[str, Sample]:
    """Submit, and step to the end."""
    for one in requests:
        running.submit(one)
    found: dict[str, Sample] = {}
    while running.running() or running.waiting():
        for sample in running.step():
            assert sample.key[0] not in found
            found[sample.key[0]] = sample
    return found


def assert_same(found: Sample, expected: Sample) -> None:
    """Tokens and log-probs, bit for bit."""
    np.testing.assert_array_equal(found.completion_ids, expected.completion_ids)
    np.testing.assert_array_equal(found.logprobs.view(np.int32), expected.logprobs.view(np.int32))
    assert found.finish_reason == expected.finish_reason
