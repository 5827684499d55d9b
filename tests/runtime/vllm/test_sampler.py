"""The sampler keeps the port's promises with a vLLM server behind it: versions, seeds, ends, aborts, pauses, faults of the server."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from slipstream.core.clock import ManualClock, SystemClock
from slipstream.core.errors import RunFailed, UsageError
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.loop.conformance import QUICK, Verdict, check_sampler, failures
from slipstream.loop.evaluate import draw_all
from slipstream.runtime.vllm.sampler import VllmSampler
from tests.engine.small import SPEC as SMALL
from tests.engine.small import weights
from tests.loop.table_sampler import KNOWN, VOCABULARY, TableSampler, learner_of, scored
from tests.runtime.vllm.fake_server import CONTEXT, NAME, Arithmetic, FakeServer, Raw, TopOne, faking, table_of
from tests.runtime.vllm.test_wire import REAL

SPEC = replace(SMALL, vocab=VOCABULARY, known_tokens=KNOWN, layers=1)
PROMPTS = [np.array(ids, np.int32) for ids in ([3, 7, 1, 12], [5, 5])]
SLOTS = 4


def version(number: int) -> WeightVersion:
    return weights(number, SPEC)


def learner(number: int):
    """What a learner says of the table that the fake makes of this version."""
    return learner_of(table_of(np.asarray(version(number).params.embed)))


def opened(url: str, folder: Path, **options: Any) -> VllmSampler:
    plain: dict[str, Any] = {
        "id": "vllm",
        "model": NAME,
        "spec": SPEC,
        "directory": folder / "weights",
        "clock": SystemClock(),
        "slots": SLOTS,
    }
    return VllmSampler(url, **plain | options)


@contextmanager
def sampling(folder: Path, arithmetic: type[Arithmetic] = Arithmetic, **options: Any) -> Iterator[tuple[VllmSampler, FakeServer]]:
    """A sampler with version 0 loaded, and its server."""
    with faking(arithmetic) as (server, url), closing(opened(url, folder, **options)) as sampler:
        sampler.load(version(0))
        server.asked.clear()
        yield sampler, server


def request(name: str, *, new: int = 6, **options: Any) -> SampleRequest:
    plain: dict[str, Any] = {"seed": sum(name.encode()), "temperature": 1.0, "stop_ids": ()}
    return SampleRequest(key=(name, 0), prompt_ids=PROMPTS[0], max_new_tokens=new, **plain | options)


def drain(sampler: VllmSampler) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    while sampler.running() or sampler.waiting():
        found |= {sample.key[0]: sample for sample in sampler.step()}
    return found


def gap(sample: Sample, number: int) -> np.ndarray:
    """How far each token's stored log-prob is from the learner's at a version."""
    ids = [*PROMPTS[0].tolist(), *sample.completion_ids.tolist()]
    found = scored(TableSampler(table_of(np.asarray(version(number).params.embed))), ids, 1.0)
    return np.abs(found[len(PROMPTS[0]) :] - sample.logprobs)


def test_it_passes_the_self_test(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, _):
        found = check_sampler(sampler, learner(0), prompts=PROMPTS, known_tokens=KNOWN, seed=0, effort=QUICK)
        assert failures(found) == ""
        assert sum(one.verdict is Verdict.PASSED for one in found) >= 11, found  # the others cannot tell much of this table
        assert sampler.sampler_class == "vllm/cpu/f32"


def test_the_self_test_catches_a_server_that_tells_the_likeliest_token_s_log_prob(tmp_path: Path) -> None:
    with sampling(tmp_path, TopOne) as (sampler, _):
        found = check_sampler(sampler, learner(0), prompts=PROMPTS, known_tokens=KNOWN, seed=0, effort=QUICK)
    failed = {one.check.split(" at temperature")[0] for one in found if one.verdict is Verdict.FAILED}
    assert failed >= {"probabilities", "log-probs"}


def test_new_weights_under_running_samples(tmp_path: Path) -> None:
    """Those running go on from where they are, those waiting start with the new weights, and every token is of the version it names."""
    with sampling(tmp_path) as (sampler, server):
        server.hold = 3
        for name in "abcdef":
            sampler.submit(request(name, new=12))
        sampler.step()
        server.until_held(SLOTS)
        sampler.load(version(1))
        assert (sampler.version, sampler.waiting(), sampler.free_slots()) == (1, 6, 0)
        server.go()
        samples = drain(sampler)
        assert len(samples) == 6
        for name, sample in samples.items():
            old = 4 if name in "abcd" else 0  # one more than had been streamed: it came after the pause was answered
            assert sample.versions.tolist() == [0] * old + [1] * (12 - old)
            assert max(gap(sample, 0)[:old].max(initial=0.0), gap(sample, 1)[old:].max()) < 1e-5
            assert gap(sample, 0)[old:].max() > 0.1
        assert sampler.free_slots() == SLOTS


def test_a_request_that_reaches_the_server_after_the_pause_is_ended_too(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, server):
        server.hold, server.late = 0, True
        sampler.submit(request("a"))
        sampler.step()
        server.until_held(1)
        sampler.load(version(1))
        server.go()
        assert drain(sampler)["a"].versions.tolist() == [1] * 6


def test_ends_limits_and_settings(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, _):
        plain = drain_one(sampler, request("a", new=8))
        assert plain.finish_reason is FinishReason.LENGTH
        assert plain.raw_logprobs is None
        assert gap(plain, 0).max() < 1e-5
        stop = int(plain.completion_ids[3])
        first = plain.completion_ids.tolist().index(stop)
        stopped = drain_one(sampler, request("a", new=8, stop_ids=(stop,)))
        assert stopped.finish_reason is FinishReason.STOP
        np.testing.assert_array_equal(stopped.completion_ids, plain.completion_ids[: first + 1])
        biased = drain_one(sampler, request("a", logit_bias=((9, 100.0),)))
        assert biased.completion_ids.tolist() == [9] * 6
        greedy = [drain_one(sampler, request("a", temperature=0.0, seed=seed)).completion_ids.tolist() for seed in (1, 2)]
        assert greedy[0] == greedy[1] == drain_one(sampler, request("a", top_k=1)).completion_ids.tolist()
        for bad, message in (
            (request("a", temperature=0.001), "temperature 0.001"),
            (request("a", logit_bias=((1, 101.0),)), "101"),
            (request("a", new=CONTEXT), f"at most {CONTEXT} fit"),
            (request("a", logit_bias=((KNOWN, 1.0),)), f"0 to {KNOWN - 1}"),
        ):
            with pytest.raises(ValueError, match=message):
                sampler.submit(bad)
        assert sampler.waiting() == 0


def drain_one(sampler: VllmSampler, asked: SampleRequest) -> Sample:
    return draw_all(sampler, [asked])[0]


def test_aborted_samples_are_beginnings_and_pauses_change_nothing(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, server):
        whole = {name: drain_one(sampler, request(name)) for name in "ab"}
        server.hold = 3
        for name in "abcdef":
            sampler.submit(request(name))
        sampler.step()
        server.until_held(SLOTS)
        sampler.pause()
        server.go()
        assert sampler.step() == []
        part = sampler.abort(("a", 0))
        assert part is not None
        assert part.finish_reason is FinishReason.ABORTED
        assert part.completion_ids.tolist() == whole["a"].completion_ids[:3].tolist()
        assert part.versions.tolist() == [0] * 3
        waiting = sampler.abort(("f", 0))
        assert waiting is not None
        assert (len(waiting.completion_ids), waiting.slot) == (0, -1)
        assert sampler.abort(("nobody", 0)) is None
        assert sampler.drawn(("b", 0), 1)[0] == whole["b"].completion_ids[1:3].tolist()
        sampler.load(version(0))  # under a pause: it stays one
        assert sampler.step() == []
        sampler.resume()
        samples = drain(sampler)
        assert sorted(samples) == list("bcde")
        assert sorted(sample.slot for sample in samples.values()) == [0, 1, 2, 3]
        sampler.submit(request("a"))
        server.hold = 1
        sampler.step()
        server.until_held(1)
        sampler.abort(("a", 0))
        server.until_idle()  # the server noticed
        server.go()


def test_a_full_server_is_asked_again_and_no_more_is_asked_than_there_are_slots(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, server):
        server.busy = 3
        for number in range(10):
            sampler.submit(request(f"r{number}"))
        assert (sampler.waiting(), sampler.free_slots()) == (10, 0)
        server.hold = 1
        sampler.step()
        server.until_held(SLOTS)
        server.go()
        assert len(drain(sampler)) == 10
        assert (len(server.asked), server.most_at_once) == (13, SLOTS)


def test_a_server_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with faking() as (_, url):
        with pytest.raises(UsageError, match="serves policy, not 'nobody'"):
            opened(url, tmp_path, model="nobody")
        with pytest.raises(UsageError, match=r"65 slots, .* runs 64 requests at a time"):
            opened(url, tmp_path, slots=65)
    with faking(Raw) as (_, url), pytest.raises(UsageError, match=r"before temperature.*processed_logprobs"):
        opened(url, tmp_path)
    with faking(developer=False) as (_, url), pytest.raises(UsageError, match="no /server_info: start it with VLLM_SERVER_DEV_MODE=1"):
        opened(url, tmp_path)
    with pytest.raises(RunFailed, match=rf"{url} cannot be asked for GET /v1/models: .*[Cc]onnect"):
        opened(url, tmp_path)


def test_a_tied_model_on_a_cpu_needs_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """The server would else go on with its old one: it packs it at the start, and a reload packs only what it reads."""
    tied = replace(SPEC, tied=True)
    with faking() as (server, url):
        with pytest.raises(UsageError, match="would keep the old one"):
            opened(url, tmp_path, spec=tied)
        server.own_head = True
        with closing(opened(url, tmp_path, spec=tied)) as sampler:
            sampler.load(weights(3, tied))
    written = load_file(tmp_path / "weights" / "model.safetensors")
    np.testing.assert_array_equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
    np.testing.assert_array_equal(written["lm_head.weight"], weights(3, tied).params.embed)
    assert not json.loads((tmp_path / "weights" / "config.json").read_text())["tie_word_embeddings"]


def test_a_server_that_dies_or_goes_silent_fails_the_run(tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, server):
        sampler.submit(request("a"))
        server.hold = 2
        sampler.step()
        server.until_held(1)
        server.stop()
        with pytest.raises(RunFailed, match=r"server at http://127.0.0.1:\d+, asked for sample \('a', 0\)"):
            drain(sampler)
    clock = ManualClock()
    with sampling(tmp_path, clock=clock, silent_after_s=30.0) as (sampler, server):
        sampler.submit(request("a"))
        server.hold = 2
        sampler.step()
        server.until_held(1)
        clock.advance(20.0)
        sampler.pause()
        clock.advance(20.0)
        sampler.resume()  # a pause is no silence
        sampler.step()
        clock.advance(31.0)
        with pytest.raises(RunFailed, match="not a word in 31 s"):
            sampler.step()
        server.go()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("break", "asked for sample"),
        ('{"error": {"message": "out of memory"}}', "out of memory"),
        (json.dumps({"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-1.0]}, "prompt_token_ids": [1]}]}), "another prompt"),
        ('{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "stop"}]}', "after 0 tokens, by itself"),
    ],
)
def test_a_stream_that_goes_wrong_fails_the_run(words: str, message: str, tmp_path: Path) -> None:
    with sampling(tmp_path) as (sampler, server):
        server.words = words
        sampler.submit(request("a"))
        with pytest.raises(RunFailed, match=message):
            drain(sampler)


def test_the_fake_says_what_the_real_server_said() -> None:
    """Answers have the recorded one's fields, as far as the fake has them, with values of the same kind."""

    def compare(fake: Any, real: Any, place: str) -> None:
        if isinstance(fake, dict) and isinstance(real, dict):
            if "top_logprobs" in place:  # by token
                fake, real = ({"token": next(iter(one.values()))} for one in (fake, real))
            assert fake.keys() <= real.keys(), place
            for name in fake:
                compare(fake[name], real[name], f"{place}.{name}")
        elif isinstance(fake, list) and isinstance(real, list):
            compare(fake[0], real[0], f"{place}[0]")
        else:
            assert fake is None or isinstance(fake, type(real)), (place, fake, real)

    def ask(url: str, path: str, sent: Any) -> list[str]:
        call = urllib.request.Request(url + path, None if sent is None else json.dumps(sent).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(call, timeout=60) as response:
                return [line.decode().strip() for line in response if line.strip()]
        except urllib.error.HTTPError as error:
            with error:
                return [error.read().decode()]

    with faking() as (_, url):
        for name in ("models", "probe at 1", "plain", "stop held back", "greedy", "wrong model", "abort", "pause", "resume"):
            real = REAL[name]
            sent = real["sent"]
            if sent and "prompt" in sent:
                sent = sent | {"prompt": [1, 2, 3, 4], "stop_token_ids": [5]}
            lines = ask(url, real["path"], {} if real["method"] == "POST" and sent is None else sent)
            assert (lines[-1] == "data: [DONE]") == (real["lines"][-1] == "data: [DONE]")
            for fake_line, real_line in zip(lines[:1], real["lines"][:1], strict=True):
                compare(json.loads(fake_line.removeprefix("data: ")), json.loads(real_line.removeprefix("data: ")), name)
