"""Whatever is sent to a coordinator, it answers with one clear error and the run goes on."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from slipstream.cli.main import app
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import UsageError
from slipstream.core.records import Rollout
from slipstream.runtime.coordinator.messages import frame
from slipstream.runtime.join.membership import Seat
from slipstream.telemetry.run_directory import RunDirectory
from tests.ledger.rollouts import make_rollout
from tests.runtime.coordinator.here import Here, caller, claimed, coordinator, post, remote, seat
from tests.runtime.runs import TINY


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory):
    with coordinator(tmp_path_factory.mktemp("bad"), max_body_bytes=100_000) as made:
        yield made


@pytest.fixture(scope="module")
def sampler(here: Here) -> Seat:
    return seat(here.url)


@pytest.fixture(scope="module")
def good(sampler: Seat) -> Rollout:
    (ticket,) = claimed(remote(sampler), 1)
    return make_rollout(ticket, 0, [0, 0, 0])


def submission(one: Seat, *contents: bytes, **head: object) -> bytes:
    return frame({**one.head, **head}, contents)


def assert_alive(here: Here, one: Seat) -> None:
    assert remote(one).wanted_version(0) == 0


JOIN = {"kind": "sampler", "incarnation": "x"}
CALLS = {
    "no JSON": ("v1/claim", b"{", 400, "claim: body: Invalid JSON"),
    "unknown field": ("v1/join", {**JOIN, "colour": "red"}, 400, "join: colour: Extra inputs are not permitted"),
    "missing fields": ("v1/claim", {}, 400, "run_id: Field required; worker: Field required"),
    "no such call": ("v1/steal", {}, 404, "there is no POST /v1/steal here"),
    "another schema": ("v1/join", {**JOIN, "schema_version": 99}, 409, "speaks schema 99; the coordinator is slipstream"),
    "another code version": ("v1/join", {**JOIN, "code": "9.9"}, 409, "this sampler is slipstream 9.9"),
    "a name of another kind": ("v1/join", {"kind": "learner", "incarnation": "one"}, 409, "'one' is the name of sampler-0"),
    "another run to join": ("v1/join", {**JOIN, "run_id": "other"}, 409, "keeps run run, the call is for run other"),
    "another run": ("v1/wanted", {"run_id": "other", "worker": "w", "epoch": 1, "newest": 0}, 409, "keeps run run"),
    "unknown worker": ("v1/wanted", {"run_id": "run", "worker": "w", "epoch": 1, "newest": 0}, 410, "join again"),
    "too large": ("v1/submit", b"x" * 100_001, 413, "the body is larger than 100000 bytes"),
    "shorter than its head": ("v1/submit", struct.pack("<I", 1_000) + b"{}", 400, "is shorter than its head"),
    "not even a head": ("v1/submit", b"", 400, "is shorter than its head"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_means_nothing(name: str, here: Here, sampler: Seat) -> None:
    path, body, status, words = CALLS[name]
    found, answer = post(here.url, path, body)
    assert (found, words in answer["error"]) == (status, True), answer
    assert_alive(here, sampler)


def test_a_wrong_token_or_none(here: Here) -> None:
    for token in ("wrong", None, "sécret".encode().decode("latin-1")):
        status, answer = post(here.url, "v1/join", JOIN, token)
        assert (status, "the token is missing or wrong" in answer["error"]) == (401, True)
    with pytest.raises(UsageError, match=r"the token is missing or wrong; .* \(--token-file\)"):
        seat(here.url, made=caller(here.url, token="wrong"))


def changed(**fields: object) -> Callable[[Rollout], bytes]:
    return lambda rollout: rollout_to_bytes(replace(rollout, **fields))


def with_token_ids(*ids: int) -> Callable[[Rollout], bytes]:
    return lambda rollout: rollout_to_bytes(replace(rollout, completion_ids=np.array(ids, np.int32)))


NAN = np.array([-0.5, np.nan, -0.5], np.float32)
ROLLOUTS = {
    "NaN log-probs": (changed(logprobs=NAN), 400, "t00000000/0: the log-prob of token 1 is nan"),
    "cut off": (lambda rollout: rollout_to_bytes(rollout)[:-1], 400, "rollout 0 of the body cannot be read: rollout record of"),
    "no rollout": (lambda rollout: b"hello", 400, "rollout 0 of the body cannot be read"),
    "another run": (changed(run_id="other"), 400, "run_id is 'other', and this is run 'run'"),
    "another prompt": (changed(prompt_ids=np.array([7], np.int32)), 400, "prompt p0 is not that of ticket 0, p0"),
    "tokens of no model": (with_token_ids(1, 100, 2), 400, "token ids are 1 to 100; the model has 0 to 99"),
    "negative token": (with_token_ids(1, -1, 2), 400, "token ids are -1 to 2"),
    "a ticket of nobody": (changed(ticket_index=-1), 400, "ticket_index is -1"),
    "a sample of no group": (changed(sample_index=2), 400, "sample_index must be 0 to 1"),
    "a version to come": (changed(versions=np.array([0, 0, 9], np.int32)), 400, "versions are 0 to 9"),
}


@pytest.mark.parametrize("name", ROLLOUTS)
def test_a_rollout_that_no_run_takes(name: str, here: Here, sampler: Seat, good: Rollout) -> None:
    make, status, words = ROLLOUTS[name]
    before = here.ledger.state
    found, answer = post(here.url, "v1/submit", submission(sampler, make(good)))
    assert (found, words in answer["error"]) == (status, True), answer
    assert here.ledger.state == before
    assert_alive(here, sampler)


def test_too_many_tokens_and_sizes_that_do_not_fit(here: Here, sampler: Seat, good: Rollout) -> None:
    nine = np.zeros(9, np.int32)
    long = replace(good, completion_ids=nine, logprobs=nine.astype(np.float32), versions=nine, loss_mask=np.ones(9, bool))
    _, answer = post(here.url, "v1/submit", submission(sampler, rollout_to_bytes(long)))
    assert "9 tokens; sampling.max_new_tokens allows 1 to 8" in answer["error"]
    head = json.dumps({**sampler.head, "sizes": [5]}).encode()
    _, answer = post(here.url, "v1/submit", struct.pack("<I", len(head)) + head)
    assert "the head promises rollouts of 5 bytes, 0 came" in answer["error"]


def test_partial_tokens_that_nobody_could_go_on_from(here: Here, sampler: Seat, good: Rollout) -> None:
    whole = {"ticket_index": good.ticket_index, "sample": 0, "completion_ids": [1, 2], "logprobs": [-0.5, -0.5], "versions": [0, 0]}
    for change, words in (
        ({"logprobs": [-0.5]}, "partial 0/0: 2 tokens, 1 log-probs, 2 versions"),
        ({"logprobs": [-0.5, float("nan")]}, "progress: partials.0.logprobs.1: Input should be a finite number"),
        ({"versions": [0, 9]}, "partial 0/0: versions are 0 to 9"),
        ({"sample": 2}, "partial 0/2: sample must be 0 to 1"),
        ({"ticket_index": 99}, "nobody claimed ticket 99"),
    ):
        found, answer = post(here.url, "v1/progress", {**sampler.head, "partials": [{**whole, **change}]})
        assert (found, words in answer["error"]) == (400, True), answer
    assert_alive(here, sampler)


def test_only_a_learner_may_train(here: Here, sampler: Seat) -> None:
    calls = {"batch": {"step": 0}, "commit": {"step": 0}, "begin": {"version": 0}, "forget": {"step": 0}, "ratios": {"ratios": []}}
    for name, fields in calls.items():
        status, answer = post(here.url, f"v1/{name}", {**sampler.head, **fields})
        assert (status, "only a learner may do this" in answer["error"]) == (409, True)
    learner = seat(here.url, "learner", "L")
    for name, fields, status, words in (
        ("begin", {"version": 3}, 409, "a checkpoint of step 3 is of another run: this one has trained 0"),
        ("batch", {"step": 2}, 409, "there is no batch 2: 0 are fixed"),
        ("commit", {"step": 0}, 400, "batch 0 cannot be trained"),
    ):
        found, answer = post(here.url, f"v1/{name}", {**learner.head, **fields})
        assert (found, words in answer["error"]) == (status, True), answer


def refused(*arguments: str) -> str:
    """What a command that cannot begin says; its exit code is 2."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


def test_a_coordinator_that_cannot_begin_says_why(here: Here, tmp_path: Path) -> None:
    begin, free = ("coordinator", str(TINY), "--run-dir", str(tmp_path / "new")), ("--port", "0")
    assert f"--port {here.port} cannot be used" in refused(*begin, "--port", str(here.port))
    assert "can be reached by others: give --token-file" in refused(*begin, *free, "--host", "0.0.0.0")
    assert "--tls-cert and --tls-key belong together" in refused(*begin, *free, "--tls-key", "key.pem")
    assert "token cannot be read" in refused(*begin, *free, "--token-file", str(tmp_path / "token"))
    assert "holds no run; give a recipe" in refused("coordinator", "--run-dir", str(tmp_path / "new"), *free)
    assert not (tmp_path / "new").exists()  # the corrected call finds the place free
    running = RunDirectory.create(tmp_path / "running", TINY.read_text())
    running.lock()
    assert "is in use by process" in refused("coordinator", "--run-dir", str(running.path), *free)
    running.release()
    assert "not the address of a coordinator" in refused("sampler", "--join", "localhost")
