"""Exact mode: the engine's log-probs are the learner's to the bit, whatever the company, order, pages, packing and program.

What is compared are bits (float32 as int32), counted: all of them, in every arrangement.
"""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from slipstream.config.schema import BatchSection, ModelSection, RunConfig, SamplingSection
from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import Sample, SampleRequest, TrainingSequence, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.models import numerics
from slipstream.models.numerics import Numerics, barriers_hold
from slipstream.train.learner import Learner
from tests.engine.small import drain, request
from tests.engine.test_learner_agreement import sequence
from tests.goldens.read import FAMILIES, golden
from tests.models.families import golden_model

PAGE = 8
IN_CI = (("gemma2", "f32"), ("qwen3", "bf16"))  # soft caps, windows, norms around each part, tied; normalised q and k, untied
ELSEWHERE = [(family, precision) for family in FAMILIES for precision in ("f32", "bf16") if (family, precision) not in IN_CI]


def sampler(family: str, precision: str, **options: object) -> Engine:
    spec, params = golden_model(family)
    settings = {"slots": 4, "tokens_per_dispatch": 3, "page_tokens": PAGE, "precision": precision, "exact": True} | options
    made = Engine(spec, id="exact", clock=ManualClock(), max_tokens=64, **settings)  # pyright: ignore[reportArgumentType]
    made.load(WeightVersion(lineage=0, version=0, params=params))
    return made


def asked(family: str) -> list[SampleRequest]:
    """Prompts of 1 to 38 tokens, a group of three with one prompt, completions long enough to run out of pages."""
    known = golden(family)
    prompts = [known.tokens[:31], known.tokens_b, known.tokens_c, known.tokens_b, known.tokens_b, known.tokens[:1], known.tokens[:38]]
    return [request(f"r{index}", prompt, new=20 + index, stop_ids=()) for index, prompt in enumerate(prompts)]


def learner(family: str, precision: str, *, layers: str = "scan", remat: bool = False, row_tokens: int = 64, rows: int = 2) -> Learner:
    spec, params = golden_model(family)
    config = RunConfig(
        model=ModelSection.model_validate({"numerics": "exact", "learner_layers": layers, "remat": remat, "learner_precision": precision}),
        sampling=SamplingSection.model_validate({"page_tokens": PAGE, "precision": precision}),
        batch=BatchSection(row_tokens=row_tokens, rows_per_microbatch=rows),
    )
    made = Learner(config, spec, params)
    made.begin_reinforcement()
    return made


def bits(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32).view(np.int32)


def differing(found: dict[str, Sample], expected: dict[str, Sample]) -> int:
    assert found.keys() == expected.keys()
    count = 0
    for name, sample in found.items():
        np.testing.assert_array_equal(sample.completion_ids, expected[name].completion_ids)
        count += int((bits(sample.logprobs) != bits(expected[name].logprobs)).sum())
    return count


def differing_scores(family: str, precision: str, found: dict[str, Sample], **options: object) -> tuple[int, int]:
    """Tokens whose log-prob the learner gives other bits, and tokens compared, in the order given and with one prompt's samples apart."""
    made = learner(family, precision, **options)  # pyright: ignore[reportArgumentType]
    wrong = total = 0
    requests = asked(family)
    for order in (requests, requests[::-2] + requests[-2::-2]):
        sequences = [sequence(one, found[one.key[0]]) for one in order]
        for one, scored in zip(sequences, made.score(sequences, made.weights()), strict=True):
            wrong += int((bits(scored[one.loss_mask]) != bits(one.behaviour_logprobs[one.loss_mask])).sum())
            total += int(one.loss_mask.sum())
    return wrong, total


@cache
def together(family: str, precision: str) -> dict[str, Sample]:
    return drain(sampler(family, precision), asked(family))


def check_engine(family: str, precision: str) -> None:
    """Alone, in other orders, joining and leaving, in pages that are taken away, in other numbers of rows and steps."""
    expected, requests = together(family, precision), asked(family)
    alone = sampler(family, precision)
    assert differing({one.key[0]: drain(alone, [one])[one.key[0]] for one in requests}, expected) == 0
    assert differing(drain(sampler(family, precision, slots=7, tokens_per_dispatch=5), requests[::-1]), expected) == 0
    joining, found = sampler(family, precision, pages=9), {}
    for one in requests:
        joining.submit(one)
        found |= {sample.key[0]: sample for sample in joining.step()}
    assert differing(found | drain(joining), expected) == 0
    assert joining._scheduler.preemptions > 0


def check_learner(family: str, precision: str) -> None:
    """Scanned and unrolled, recomputed or not, in rows of other widths and heights; values of the differentiated program too."""
    found = together(family, precision)
    tokens = sum(len(sample.completion_ids) for sample in found.values())
    for options in ({}, {"layers": "unroll", "remat": True, "row_tokens": 128, "rows": 1}):
        assert differing_scores(family, precision, found, **options) == (0, 2 * tokens), options
    made = learner(family, precision, remat=True)
    metrics = made.step([with_signal(sequence(one, found[one.key[0]])) for one in asked(family)])
    assert metrics["ratio_mean"] == metrics["ratio_p99"] == metrics["ess"] == 1.0
    assert metrics["ratio_std"] == 0.0
    assert 0 < metrics["grad_norm"] < np.inf


def with_signal(one: TrainingSequence) -> TrainingSequence:
    return replace(one, advantages=np.where(one.loss_mask, np.float32(1), np.float32(0)))


@pytest.mark.parametrize(("family", "precision"), IN_CI)
def test_the_engine_is_exact(family: str, precision: str) -> None:
    check_engine(family, precision)


@pytest.mark.parametrize(("family", "precision"), IN_CI)
def test_the_learner_is_exact(family: str, precision: str) -> None:
    check_learner(family, precision)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "precision"), ELSEWHERE)
def test_every_family_is_exact(family: str, precision: str) -> None:
    check_engine(family, precision)
    check_learner(family, precision)


def test_exact_mode_is_refused_where_the_compiler_drops_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently the fast path: an engine that cannot be exact is not made."""
    assert barriers_hold()
    monkeypatch.setattr(numerics, "_compiler_options", lambda: None)
    assert not barriers_hold()
    with pytest.raises(RunFailed, match="does not keep barriers"):
        sampler("llama", "f32")


FAULTS = {
    "sums as XLA likes": {"total": lambda self, x: jax.numpy.sum(x, axis=-1, keepdims=True)},
    "products of all rows at once": {"product": lambda self, x, matrix: x @ matrix},
    "no barriers": {"seal": lambda self, x: x},
}
SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in list(FAULTS)[1:]]


@pytest.mark.parametrize("fault", [next(iter(FAULTS)), *SLOW])
def test_the_tests_can_see(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one part of the recipe some bits differ, so the counts above mean something. And fast mode is not exact."""
    for name, replacement in FAULTS[fault].items():
        monkeypatch.setattr(Numerics, name, replacement)
    jax.clear_caches()
    try:
        found = drain(sampler("gemma2", "f32"), asked("gemma2"))
        wrong, total = differing_scores("gemma2", "f32", found)
        assert 0 < wrong <= total
    finally:
        jax.clear_caches()
