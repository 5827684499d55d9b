"""New weights meet running samples: each token has the version that drew it, and is what those weights and the kept cache give.

The reference stitches it together from the definition: an explicit cache whose entries stay those of the weights that wrote
them, and the same noise.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.records import Partial, Sample, SampleRequest, WeightVersion
from slipstream.engine.sampling import draw
from tests.engine.small import PER_DISPATCH, SPEC, assert_same, drain, engine, params, request, weights
from tests.models.llama_oracle import LlamaOracle, file_tensors, log_softmax

REQUESTS = [
    request("warm", [3, 1, 4, 1, 5], new=20, stop_ids=()),
    request("cold", [2, 7], new=20, temperature=0.5, stop_ids=()),
    request("greedy", [1] * 17, new=20, temperature=0.0, stop_ids=()),
]
BEFORE = 2 * PER_DISPATCH  # tokens drawn when the weights change


def swapped(*versions: int, **options: Any) -> dict[str, Sample]:
    """All requests, with a swap after every two dispatches."""
    return swapped_to([weights(version) for version in versions], **options)


def swapped_to(versions: list[WeightVersion], **options: Any) -> dict[str, Sample]:
    running = engine(**options)
    for one in REQUESTS:
        running.submit(one)
    for version in versions:
        running.step()
        running.step()
        running.load(version)
    return drain(running)


@pytest.fixture(scope="module")
def found() -> dict[str, Sample]:
    return swapped(1)


def stitched(one: SampleRequest, drawn: np.ndarray, versions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probs by the definition. The last prompt token and each drawn one is fed to the weights that draw the next."""
    tensors = {version: file_tensors(params(int(version)), SPEC) for version in np.unique(versions)}
    oracle, logits = LlamaOracle(SPEC), np.zeros(SPEC.vocab)
    first = versions[0]
    for token in one.prompt_ids[:-1]:
        oracle.step(tensors[first], int(token))
    tokens, logprobs = [], []
    key = jnp.array([[one.seed & 0xFFFFFFFF, one.seed >> 32]], jnp.uint32)
    fed = [one.prompt_ids[-1], *drawn[:-1]]
    for index, (token, version) in enumerate(zip(fed, versions, strict=True)):
        logits = oracle.step(tensors[version], int(token))
        log_probs = log_softmax(logits, one.temperature or 1.0)
        position = jnp.array([len(one.prompt_ids) + index])
        by_chance = draw(jnp.asarray(log_probs[None], jnp.float32), key, position)[0]
        tokens.append(int(by_chance if one.temperature else np.argmax(log_probs)))
        logprobs.append(log_probs[drawn[index]])
    return np.array(tokens), np.array(logprobs)


def test_versions_change_at_the_dispatch(found: dict[str, Sample]) -> None:
    for sample in found.values():
        np.testing.assert_array_equal(sample.versions, [0] * BEFORE + [1] * (20 - BEFORE))


def test_tokens_before_the_swap_are_those_of_the_unswapped_run(found: dict[str, Sample]) -> None:
    plain = drain(engine(), REQUESTS)
    for name, sample in found.items():
        np.testing.assert_array_equal(sample.completion_ids[:BEFORE], plain[name].completion_ids[:BEFORE])
        np.testing.assert_array_equal(sample.logprobs[:BEFORE], plain[name].logprobs[:BEFORE])
        assert not np.array_equal(sample.logprobs[BEFORE:], plain[name].logprobs[BEFORE:])


@pytest.mark.parametrize("one", REQUESTS, ids=[one.key[0] for one in REQUESTS])
def test_tokens_after_the_swap_come_from_new_weights_over_the_old_cache(found: dict[str, Sample], one: SampleRequest) -> None:
    sample = found[one.key[0]]
    tokens, logprobs = stitched(one, sample.completion_ids, sample.versions)
    np.testing.assert_array_equal(sample.completion_ids, tokens)
    np.testing.assert_allclose(sample.logprobs, logprobs, atol=1e-4, rtol=0)


def test_several_swaps_in_one_sample() -> None:
    found = swapped(3, 5)
    one, sample = REQUESTS[0], found["warm"]
    np.testing.assert_array_equal(sample.versions, [0] * BEFORE + [3] * BEFORE + [5] * (20 - 2 * BEFORE))
    tokens, logprobs = stitched(one, sample.completion_ids, sample.versions)
    np.testing.assert_array_equal(sample.completion_ids, tokens)
    np.testing.assert_allclose(sample.logprobs, logprobs, atol=1e-4, rtol=0)


def test_loading_the_same_weights_under_another_number_changes_the_number_only() -> None:
    running = engine()
    running.submit(REQUESTS[0])
    running.step()
    again = weights(0)
    running.load(type(again)(lineage=0, version=9, params=again.params))
    sample = drain(running)["warm"]
    assert_same(sample, drain(engine(), REQUESTS[:1])["warm"])
    np.testing.assert_array_equal(sample.versions, [0] * PER_DISPATCH + [9] * (20 - PER_DISPATCH))


def test_a_request_that_waited_through_the_swap_is_wholly_of_the_new_version() -> None:
    running = engine()
    for index in range(4):
        running.submit(request(f"f{index}", [9], new=6, stop_ids=()))
    running.submit(REQUESTS[0])
    running.step()
    assert running.waiting() == 1
    running.load(weights(1))
    fresh = engine()
    fresh.load(weights(1))
    sample = drain(running)["warm"]
    assert (sample.versions == 1).all()
    assert_same(sample, drain(fresh, REQUESTS[:1])["warm"])


class Kept:
    """Events that are kept."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self.rows.append({"role": role, "kind": kind, **fields})

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None: ...


def test_recomputed_keys_and_values_are_wholly_of_the_new_weights() -> None:
    """What is drawn after the swap is what a fresh engine with the new weights draws after the same tokens."""
    found = swapped(1, on_swap="recompute")
    for one in REQUESTS:
        sample, fresh = found[one.key[0]], engine()
        fresh.load(weights(1))
        begun = request("begun", [*one.prompt_ids, *sample.completion_ids[:BEFORE]], seed=one.seed, new=20 - BEFORE, stop_ids=())
        expected = drain(
            fresh, [SampleRequest(**{name: getattr(begun, name) for name in begun.__slots__} | {"temperature": one.temperature})]
        )
        np.testing.assert_array_equal(sample.completion_ids[BEFORE:], expected["begun"].completion_ids)
        np.testing.assert_array_equal(sample.logprobs[BEFORE:], expected["begun"].logprobs)


@pytest.mark.parametrize(("size", "decision"), [(1e-3, "keep"), (1.0, "recompute")])
def test_auto_keeps_what_hardly_differs_and_recomputes_what_does(size: float, decision: str) -> None:
    """A small and a large step towards unrelated weights. Measuring changes no bit of what is drawn."""
    towards = jax.tree.map(lambda old, new: old + size * (new - old), params(0), params(1))
    once, again = (WeightVersion(lineage=0, version=version, params=towards) for version in (1, 2))
    found = swapped_to([once], on_swap="auto", divergence_limit=0.05)
    for name, sample in swapped_to([once], on_swap=decision).items():
        assert_same(sample, found[name])
    other = swapped_to([once], on_swap="recompute" if decision == "keep" else "keep")
    assert not all(np.array_equal(found[name].logprobs, sample.logprobs) for name, sample in other.items())
    events = Kept()
    swapped_to([once, again], on_swap="auto", divergence_limit=0.05, events=events)
    first, second = events.rows
    assert {"role": "test", "kind": "kv_swap", "version": 1}.items() <= first.items()
    assert (first["kept"], first["recomputed"]) == ((3, 0) if decision == "keep" else (0, 3))
    assert (first["divergence"] > 0.05) == (decision == "recompute")
    assert 1e-6 < first["divergence"] < 10
    # the same weights again: what was recomputed is theirs, what was kept is as far from them as before
    assert (second["divergence"] > 1e-5) == (decision == "keep")
    assert second["kept"] == 3


def test_a_swap_that_meets_nobody_is_no_decision() -> None:
    events = Kept()
    running = engine(on_swap="auto", events=events)
    drain(running, REQUESTS[:1])
    running.load(weights(1))
    running.step()
    assert events.rows == []
    assert running.last_swap is None


def taken_over(sample: Sample, cut: int) -> Partial:
    parts = {"completion_ids": sample.completion_ids[:cut], "logprobs": sample.logprobs[:cut], "versions": sample.versions[:cut]}
    return Partial(ticket_index=0, sample=0, **parts)


@pytest.mark.parametrize(("cut", "exact"), [(1, False), (19, False), pytest.param(BEFORE, True, marks=pytest.mark.slow)])
def test_a_sample_taken_over_goes_on_as_if_it_had_never_stopped(cut: int, exact: bool) -> None:
    """After one prefill over the same weights: the same tokens, and in exact mode the same bits."""
    options: dict[str, Any] = {"exact": True, "page_tokens": 8} if exact else {}
    whole, other = drain(engine(**options), REQUESTS), engine(slots=2, **options)
    for one in REQUESTS:
        other.submit(replace(one, drawn=taken_over(whole[one.key[0]], cut)))
    assert other.drawn(REQUESTS[2].key)[0] == whole["greedy"].completion_ids[:cut].tolist()  # it waits for a row
    for name, sample in drain(other).items():
        if exact:
            assert_same(sample, whole[name])
        np.testing.assert_array_equal(sample.completion_ids, whole[name].completion_ids)
        np.testing.assert_allclose(sample.logprobs, whole[name].logprobs, atol=1e-4, rtol=0)
        assert len(sample.versions) == 20


def test_a_sample_taken_over_by_newer_weights_keeps_the_versions_of_its_first_tokens() -> None:
    """It is what recomputed keys and values give."""
    swapped_here, other = swapped(1, on_swap="recompute"), engine()
    other.load(weights(1))
    for one in REQUESTS:
        other.submit(replace(one, drawn=taken_over(swapped_here[one.key[0]], BEFORE)))
    for name, sample in drain(other).items():
        np.testing.assert_array_equal(sample.versions, swapped_here[name].versions)
        np.testing.assert_array_equal(sample.completion_ids, swapped_here[name].completion_ids)


@pytest.mark.parametrize(
    ("ids", "change", "words"),
    [
        ([5] * 20, {}, "20 tokens are drawn already; at least 1 and fewer than max_new_tokens = 20"),
        ([], {}, "0 tokens are drawn already"),
        ([5, 17], {}, "outside the vocabulary of 17"),
        ([5, 3], {"stop_ids": (3,)}, "hold a stop id"),
        ([5], {"top_k": 3}, "log-probs before truncation or bias are not known"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused(ids: list[int], change: dict[str, Any], words: str) -> None:
    count = len(ids)
    drawn = Partial(
        ticket_index=0,
        sample=0,
        completion_ids=np.array(ids, np.int32),
        logprobs=np.zeros(count, np.float32),
        versions=np.zeros(count, np.int32),
    )
    with pytest.raises(ValueError, match=words):
        engine().submit(replace(REQUESTS[0], drawn=drawn, **change))


@pytest.mark.parametrize("on_swap", ["keep", "auto"])
def test_a_request_whose_prompt_alone_was_computed_before_the_swap_is_wholly_of_the_new_version(on_swap: str) -> None:
    """Its tokens all say the new version, so nothing of them may rest on the old one."""
    running = engine(on_swap=on_swap, divergence_limit=1e9)
    running.submit(REQUESTS[1])
    running.step()
    running.submit(REQUESTS[0])
    running.step()  # its prompt is computed while the other's tokens are drawn
    running.load(weights(1))
    fresh = engine()
    fresh.load(weights(1))
    ended = drain(running)
    assert set(ended["cold"].versions.tolist()) == {0, 1}
    assert set(ended["warm"].versions.tolist()) == {1}
    assert_same(ended["warm"], drain(fresh, REQUESTS[:1])["warm"])
