"""Requests to JSON and streams to tokens, against what a real server answered; and the fake server against the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.core.records import SampleRequest
from slipstream.runtime.vllm.wire import Piece, WireError, body, error_text, probe_problem, problems, read_line, server_seed

RECORDED: dict[str, dict[str, dict[str, Any]]] = {
    path.stem: {one["name"]: one for one in json.loads(path.read_text())} for path in (Path(__file__).parent / "recorded").glob("*.json")
}
REAL = RECORDED["processed"]
PLAIN = SampleRequest(
    key=("a", 0), prompt_ids=np.array([504, 260, 253, 314], np.int32), seed=7, max_new_tokens=4, temperature=1.0, stop_ids=()
)


def pieces(name: str, kind: str = "processed") -> list[Piece]:
    return [piece for line in RECORDED[kind][name]["lines"] if (piece := read_line(line))]


def ids(name: str) -> list[int]:
    return [token for piece in pieces(name) for token in piece.token_ids]


def told(name: str) -> list[float]:
    return [value for piece in pieces(name) for value in piece.logprobs]


def answer(kind: str, name: str) -> Any:
    return json.loads(RECORDED[kind][name]["lines"][0])


def test_the_recorded_requests_are_those_of_today() -> None:
    assert body(PLAIN, "policy", range(0)) == REAL["plain"]["sent"]
    assert body(replace(PLAIN, seed=8), "policy", range(0)) == REAL["another seed"]["sent"]


def test_ids_log_probs_seeds_and_ends_as_a_real_server_tells_them() -> None:
    assert len(ids("plain")) == len(told("plain")) == 4
    assert pieces("plain")[0].prompt_ids == (504, 260, 253, 314)
    assert [piece.finish for piece in pieces("plain")] == [None, None, None, "length"]
    assert (ids("plain"), told("plain")) == (ids("again"), told("again"))
    assert ids("plain") != ids("another seed")
    # greedy log-probs are those at temperature 1; a stop token is part of the sample, and can be held back
    assert ids("stop") == ids("greedy")[:2]
    assert [piece.finish for piece in pieces("stop")] == [None, "stop"]
    np.testing.assert_allclose(told("stop"), told("greedy")[:2], atol=1e-5)
    assert ids("stop held back")[1] != ids("greedy")[1]
    assert len(ids("stop held back")) == 4
    assert (ids("bias"), told("bias")) == ([999] * 4, [0.0] * 4)
    assert pieces("paused and ended")[-1].finish == "abort"
    assert ids("paused and ended")[:4] == ids("plain")
    # both drew " not" first: at half the temperature it is another log-prob
    assert ids("temperature 0.5")[0] == ids("plain")[0]
    assert abs(told("temperature 0.5")[0] - told("plain")[0]) > 0.1


def test_a_server_of_raw_log_probs_is_told_from_one_of_processed_ones() -> None:
    plain, half = (pieces(name, "raw")[0] for name in ("plain", "temperature 0.5"))
    assert (plain.token_ids, plain.logprobs) == (half.token_ids, half.logprobs)  # what is not to be stored
    assert probe_problem(answer("processed", "probe at 1"), answer("processed", "probe at 0.5")) == ""
    assert "before temperature" in probe_problem(answer("raw", "probe at 1"), answer("raw", "probe at 0.5"))

    def likely(*values: float) -> Any:
        return {"choices": [{"logprobs": {"top_logprobs": [{f"token_id:{token}": value for token, value in enumerate(values)}]}}]}

    assert "logits" in probe_problem(likely(7.0, 5.0), likely(14.0, 10.0))
    assert "equally likely" in probe_problem(likely(-3.0, -3.0), likely(-3.0, -3.0))
    with pytest.raises(WireError, match="no log-probs"):
        probe_problem({"choices": [{"logprobs": None}]}, likely(-1.0))


def test_the_rest_of_a_sample_is_asked_for_with_what_is_there() -> None:
    request = replace(PLAIN, max_new_tokens=9, min_new_tokens=4, stop_ids=(2,), logit_bias=((5, 1.5),), top_k=3)
    asked = body(request, "policy", range(10, 12), [7, 8, 9])
    assert asked["prompt"] == [504, 260, 253, 314, 7, 8, 9]
    assert (asked["max_tokens"], asked["min_tokens"], asked["stop_token_ids"], asked["top_k"]) == (6, 1, [2], 3)
    assert asked["logit_bias"] == {"10": -100.0, "11": -100.0, "5": 1.5}  # rows that are no tokens
    assert asked["seed"] == server_seed(7, 3) != server_seed(7, 0)


def test_every_bit_of_a_seed_counts_in_the_low_half_of_the_server_s() -> None:
    base = 0x1234_5678_9ABC_DEF0
    seeds = [server_seed(base ^ (1 << bit), 0) for bit in range(64)] + [server_seed(base, 0)]
    assert len({seed % 2**32 for seed in seeds}) == 65
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_what_a_server_would_take_for_something_else_is_named() -> None:
    assert problems(PLAIN) == []
    assert problems(replace(PLAIN, temperature=0.0, logit_bias=((1, -100.0),))) == []
    cold, wild = problems(replace(PLAIN, temperature=0.005, logit_bias=((1, 3.0), (4, 200.0))))
    assert "0.005" in cold
    assert "token 4 is 200" in wild


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data: {oops", "not JSON"),
        ("data: [1]", "no JSON object"),
        ('data: {"error": {"message": "out of memory", "code": 500}}', "out of memory"),
        ('data: {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-1.0]}}]}', "no token ids"),
        ('data: {"choices": [{"token_ids": [3], "logprobs": null}]}', "no token ids and log-probs"),
        ('data: {"choices": [{"token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0]}}]}', "2 tokens with 1 log-probs"),
    ],
)
def test_a_line_in_another_form_is_refused(line: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read_line(line)


def test_refusals_are_read_in_each_of_the_server_s_forms() -> None:
    assert error_text(answer("processed", "wrong model")) == "The model `nobody` does not exist. Valid aliases: policy."
    assert error_text(answer("processed", "too long")).startswith("max_tokens=1000")
    assert error_text({"detail": "Not Found"}) == "Not Found"
    assert error_text("nothing here") == "nothing here"
    assert read_line("data: [DONE]") is read_line(": ping") is read_line('data: {"choices": []}') is None
