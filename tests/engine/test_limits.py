"""Where samples end, what is refused, and that neither touches a neighbour."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, SampleRequest, WeightVersion
from slipstream.engine.engine import Engine
from tests.engine.small import MAX_TOKENS, PER_DISPATCH, SLOTS, SPEC, STOP, assert_same, drain, engine, params, request, weights
from tests.models.llama_oracle import file_tensors, log_softmax, oracle_logits


def test_a_sample_ends_with_the_first_stop_token_and_holds_it() -> None:
    found = drain(engine(), [request(f"s{index}", [index % 16 + 1], new=30) for index in range(40)])
    stopped = [sample for sample in found.values() if sample.finish_reason is FinishReason.STOP]
    assert 20 < len(stopped) <= 40
    for sample in stopped:
        assert sample.completion_ids[-1] == STOP
        assert STOP not in sample.completion_ids[:-1]
    for sample in found.values():
        if sample.finish_reason is FinishReason.LENGTH:
            assert len(sample.completion_ids) == 30
            assert STOP not in sample.completion_ids


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    long = drain(engine(), [request("s", [4], new=30)])["s"]
    assert long.finish_reason is FinishReason.STOP
    short = drain(engine(), [request("s", [4], new=len(long.completion_ids))])["s"]
    assert_same(short, long)


def test_each_sample_has_its_own_stop_tokens() -> None:
    requests = [request(f"s{index}", [5], new=30, stop_ids=(11, 3) if index % 2 else ()) for index in range(20)]
    found = drain(engine(), requests)
    for one in requests:
        sample = found[one.key[0]]
        stops = np.isin(sample.completion_ids, one.stop_ids)
        assert stops.sum() == (sample.finish_reason is FinishReason.STOP)
        assert not stops[:-1].any()
        assert one.stop_ids or len(sample.completion_ids) == 30


def test_any_of_several_stop_tokens_ends_it() -> None:
    found = drain(engine(), [request(f"s{index}", [5], new=30, stop_ids=(11, 3)) for index in range(20)])
    ends = {int(sample.completion_ids[-1]) for sample in found.values() if sample.finish_reason is FinishReason.STOP}
    assert ends == {3, 11}


@pytest.mark.parametrize("new", [1, 2, PER_DISPATCH - 1, PER_DISPATCH, PER_DISPATCH + 1, 12])
def test_the_limit_is_exact(new: int) -> None:
    found = drain(engine(), [request("s", [1, 2], new=new, stop_ids=())])["s"]
    assert len(found.completion_ids) == len(found.logprobs) == len(found.versions) == new
    assert found.finish_reason is FinishReason.LENGTH
    longest = drain(engine(), [request("s", [1, 2], new=20, stop_ids=())])["s"]
    np.testing.assert_array_equal(found.completion_ids, longest.completion_ids[:new])
    np.testing.assert_array_equal(found.logprobs, longest.logprobs[:new])


@pytest.mark.parametrize("prompt", [1, 16, 17, 32, 33, MAX_TOKENS - 1])
def test_the_last_position_of_the_cache_is_as_good_as_any(prompt: int) -> None:
    """Samples that fill the cache agree with the definition to the last token, and so does whoever has the slot next."""
    rng, running, tensors = np.random.default_rng(prompt), engine(), file_tensors(params(0), SPEC)
    requests = [
        request(f"s{index}", rng.integers(0, SPEC.vocab, prompt), new=MAX_TOKENS - prompt, stop_ids=()) for index in range(SLOTS + 1)
    ]
    found = drain(running, requests) | drain(running, [request("next", [1, 2, 3], new=3, stop_ids=())])
    for one in (requests[0], requests[-1], request("next", [1, 2, 3], new=3)):
        sample = found[one.key[0]]
        logits = oracle_logits(tensors, SPEC, [*one.prompt_ids, *sample.completion_ids[:-1]])[len(one.prompt_ids) - 1 :]
        expected = log_softmax(logits)[np.arange(len(logits)), sample.completion_ids]
        np.testing.assert_allclose(sample.logprobs, expected, atol=1e-4, rtol=0)


BAD = {
    "empty": (replace(request("bad", [1]), prompt_ids=np.zeros(0, np.int32)), "the prompt is empty"),
    "too long": (request("bad", [1] * 30, new=8), "30 prompt \\+ 8 new tokens; at most 37 fit"),
    "nothing to draw": (request("bad", [1], new=0), "1 prompt \\+ 0 new tokens"),
    "id too high": (request("bad", [1, SPEC.vocab]), "outside the vocabulary of 17"),
    "id below zero": (request("bad", [1, -1]), "outside the vocabulary of 17"),
    "too many stop ids": (request("bad", [1], stop_ids=tuple(range(9))), "9 stop ids; at most 8"),
    "stop id unknown": (request("bad", [1], stop_ids=(0, SPEC.vocab)), "a stop id of \\(0, 17\\) lies outside the vocabulary of 17"),
    "seed below zero": (request("bad", [1], seed=-1), "seed -1 is not an unsigned 64-bit number"),
    "seed too wide": (request("bad", [1], seed=2**64), "not an unsigned 64-bit number"),
    "temperature below zero": (request("bad", [1], temperature=-1.0), "temperature -1.0 is neither"),
    "temperature not a number": (request("bad", [1], temperature=float("nan")), "temperature nan is neither"),
    "temperature without bound": (request("bad", [1], temperature=float("inf")), "temperature inf is neither"),
    "temperature too small": (request("bad", [1], temperature=1e-5), "temperature 1e-05 is below 0.0001; 0 is greedy"),
    "top_k of none": (replace(request("bad", [1]), top_k=0), "top_k = 0 is neither -1"),
    "top_k below all": (replace(request("bad", [1]), top_k=-2), "top_k = -2 is neither -1"),
    "top_p of nothing": (replace(request("bad", [1]), top_p=0.0), "top_p = 0.0 is not above 0"),
    "top_p above 1": (replace(request("bad", [1]), top_p=1.01), "top_p = 1.01 is not above 0"),
    "top_p not a number": (replace(request("bad", [1]), top_p=float("nan")), "top_p = nan is not"),
    "min_p of 1": (replace(request("bad", [1]), min_p=1.0), "min_p = 1.0 is not at least 0"),
    "min_p below zero": (replace(request("bad", [1]), min_p=-0.1), "min_p = -0.1 is not at least 0"),
    "min_p not a number": (replace(request("bad", [1]), min_p=float("nan")), "min_p = nan is not"),
    "fewer than none": (replace(request("bad", [1]), min_new_tokens=-1), "min_new_tokens = -1 is not between 0 and max_new_tokens = 12"),
    "least above most": (replace(request("bad", [1]), min_new_tokens=13), "min_new_tokens = 13 is not between 0 and max_new_tokens = 12"),
    "bias on nothing": (replace(request("bad", [1]), logit_bias=((17, 1.0),)), "logit_bias names token 17; tokens are 0 to 16"),
    "bias below all": (replace(request("bad", [1]), logit_bias=((-1, 1.0),)), "logit_bias names token -1"),
    "bias not a number": (replace(request("bad", [1]), logit_bias=((3, float("nan")),)), "logit_bias of token 3 is nan"),
    "bias without bound": (replace(request("bad", [1]), logit_bias=((3, float("-inf")),)), "logit_bias of token 3 is -inf"),
    "bias twice": (replace(request("bad", [1]), logit_bias=((3, 1.0), (3, 2.0))), "names a token twice"),
    "bias too long": (replace(request("bad", [1]), logit_bias=tuple((token, 1.0) for token in range(33))), "33 tokens; at most 32"),
    "several things": (replace(request("bad", [], new=0), top_p=2.0), "the prompt is empty; 0 prompt \\+ 0 new .*; top_p = 2.0 is not"),
}


def test_a_sample_that_must_be_longer_than_its_only_tokens_is_refused() -> None:
    tiny = replace(SPEC, vocab=3, known_tokens=2)
    with pytest.raises(ValueError, match="min_new_tokens = 1, but every token is a stop id"):
        engine(tiny).submit(replace(request("bad", [1], stop_ids=(0, 1)), min_new_tokens=1))
    with pytest.raises(ValueError, match="logit_bias names token 2; tokens are 0 to 1"):
        engine(tiny).submit(replace(request("bad", [1]), logit_bias=((2, 1.0),)))


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD)
def test_a_bad_request_is_refused_and_the_others_never_know(bad: SampleRequest, message: str) -> None:
    good = [request("a", [1, 2, 3], new=5), request("b", [4], new=5)]
    running = engine()
    running.submit(good[0])
    running.step()
    with pytest.raises(ValueError, match=message):
        running.submit(bad)
    assert (running.running(), running.waiting()) == (1, 0)
    found, expected = drain(running, good[1:]), drain(engine(), good)
    assert_same(found["b"], expected["b"])
    assert_same(found["a"], expected["a"])


def test_slots_are_counted() -> None:
    running = engine()
    assert (running.running(), running.waiting(), running.free_slots()) == (0, 0, SLOTS)
    assert running.step() == []
    for index in range(SLOTS + 2):
        running.submit(request(f"s{index}", [5], new=12, temperature=0.0))
    assert (running.running(), running.waiting(), running.free_slots()) == (0, SLOTS + 2, 0)
    running.step()
    assert (running.running(), running.waiting(), running.free_slots()) == (SLOTS, 2, 0)
    drain(running)
    assert (running.running(), running.waiting(), running.free_slots()) == (0, 0, SLOTS)


def test_an_engine_without_weights_says_so() -> None:
    bare = Engine(SPEC, id="bare", clock=ManualClock(), slots=2, max_tokens=8, tokens_per_dispatch=1)
    assert bare.version == -1
    with pytest.raises(RuntimeError, match="engine bare has no weights"):
        bare.step()


def test_broken_weights_end_the_run_with_their_version() -> None:
    running = engine()
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), params(0))
    running.load(WeightVersion(lineage=0, version=7, params=broken))
    running.submit(request("a", [1]))
    running.step()
    running.load(weights(8))  # the dispatch in flight has the weights it was launched with
    with pytest.raises(RunFailed, match="weights of version 7 give log-probs that are not finite"):
        running.step()
