"""Equal weights, equal numbers: the engine's log-prob of each token is the learner's score of it, at any temperature.

Float32: two programs of other shapes round differently. Measured differences are up to 2e-6 (at temperature 0.5); 1e-5 is
asserted, far below what any fault of position, temperature or mask gives.
"""

import numpy as np
import pytest

from slipstream.config.schema import BatchSection, RunConfig, SamplingSection
from slipstream.core.records import Sample, SampleRequest, TrainingSequence
from slipstream.train.learner import Learner
from tests.engine.small import SPEC, drain, engine, mixed_requests, params, weights

TOLERANCE = 1e-5


def sequence(one: SampleRequest, sample: Sample) -> TrainingSequence:
    before, tokens = len(one.prompt_ids), len(one.prompt_ids) + len(sample.completion_ids)
    return TrainingSequence(
        token_ids=np.concatenate([one.prompt_ids, sample.completion_ids]),
        loss_mask=np.arange(tokens) >= before,
        advantages=np.zeros(tokens, np.float32),
        behaviour_logprobs=np.concatenate([np.zeros(before, np.float32), sample.logprobs]),
        versions=np.concatenate([np.full(before, -1, np.int32), sample.versions]),
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_learner_scores_what_the_engine_stored(temperature: float) -> None:
    requests = [
        SampleRequest(**{name: getattr(one, name) for name in SampleRequest.__slots__} | {"temperature": temperature})
        for one in mixed_requests()
    ]
    found = drain(engine(), requests)
    sequences = [sequence(one, found[one.key[0]]) for one in requests]
    config = RunConfig(
        sampling=SamplingSection(temperature=temperature, max_new_tokens=12), batch=BatchSection(row_tokens=40, rows_per_microbatch=4)
    )
    scored = Learner(config, SPEC, params(3)).score(sequences, weights(0))
    for logprobs, one in zip(scored, sequences, strict=True):
        assert logprobs[0] == 0
        assert len(logprobs) == len(one.token_ids)
        np.testing.assert_allclose(logprobs[one.loss_mask], one.behaviour_logprobs[one.loss_mask], atol=TOLERANCE, rtol=0)
