"""The server as OpenAI's client sees it: a real process, real requests; log-probs are those of `slipstream score`."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI

from slipstream.cli.main import app
from tests.runtime.serving import ALPHABET, KEY, Running, serving

HELLO = [{"role": "user", "content": "Hello"}]
HELLO_IDS = [87, 28, 42, 71, 78, 78, 81, 2, 67, 28]  # "u:Hello a:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("openai"), "--slots", "4", "--max-tokens", "128") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return server.client()


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="tiny", **{"messages": HELLO, "max_tokens": 24, "seed": 1, **fields})


def complete(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(model="tiny", **{"prompt": "Hello", "max_tokens": 24, "seed": 1, **fields})


def refusal(call: Any, client: OpenAI, **fields: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        call(client, **fields)
    return caught.value


def test_a_chat_has_all_that_a_client_reads(client: OpenAI) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("length", "stop")
    assert answer.usage.prompt_tokens == len(HELLO_IDS)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert choice.weight_versions == [{"version": 0, "start": 0, "end": answer.usage.completion_tokens}]


def test_a_seed_repeats_an_answer_and_its_absence_is_made_good(client: OpenAI) -> None:
    first, again, other = (chat(client, seed=seed) for seed in (5, 5, 6))
    assert first.choices[0].message.content == again.choices[0].message.content != other.choices[0].message.content
    unseeded = chat(client, seed=openai.omit)
    assert chat(client, seed=unseeded.seed).choices[0].message.content == unseeded.choices[0].message.content
    assert chat(client, seed=openai.omit).seed != unseeded.seed


@pytest.mark.parametrize("stops", [[], ["a"], ["ab", "z ", "q"]])
def test_a_stream_is_the_answer_in_pieces(client: OpenAI, stops: list[str]) -> None:
    for seed in range(4):
        fields = {"seed": seed, "stop": stops, "n": 2, "logprobs": True, "extra_body": {"return_token_ids": True}}
        whole = chat(client, **fields)
        chunks = list(chat(client, **fields, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage
        assert chunks[0].prompt_token_ids == whole.prompt_token_ids == HELLO_IDS
        for choice in whole.choices:
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == choice.index]
            assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
            assert [id for piece in mine for id in getattr(piece, "token_ids", None) or []] == choice.token_ids
            entries = [entry for piece in mine if piece.logprobs for entry in piece.logprobs.content]
            assert entries == choice.logprobs.content
            assert [piece.finish_reason for piece in mine][-1] == choice.finish_reason
            assert mine[-1].weight_versions == choice.weight_versions


def test_a_streamed_completion_is_the_answer_in_pieces(client: OpenAI) -> None:
    whole = complete(client, logprobs=1)
    pieces = [chunk.choices[0] for chunk in complete(client, logprobs=1, stream=True)]
    assert "".join(piece.text for piece in pieces) == whole.choices[0].text
    offsets = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset]
    assert offsets == whole.choices[0].logprobs.text_offset == list(range(24))


def test_logprobs_are_those_of_score(server: Running, client: OpenAI, tmp_path: Any) -> None:
    rows = []
    for seed in range(3):
        answer = chat(client, seed=seed, logprobs=True, extra_body={"return_token_ids": True})
        (choice,) = answer.choices
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        rows.append({"id": seed, "prompt_ids": answer.prompt_token_ids, "completion_ids": choice.token_ids, "logprobs": logprobs})
        assert [bytes(entry.bytes).decode() for entry in choice.logprobs.content] == [entry.token for entry in choice.logprobs.content]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    app(["score", "--model", str(server.model), "--in", str(source), "--out", str(out), "--quiet"], standalone_mode=False)
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    for row, found in zip(rows, scored, strict=True):
        assert found["id"] == row["id"]
        assert found["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)


def test_samples_of_one_request_differ_and_the_first_is_that_of_a_single_one(client: OpenAI) -> None:
    answer = chat(client, n=4)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert chat(client).choices[0].message.content == texts[0]
    assert answer.usage.prompt_tokens == len(HELLO_IDS)


def test_a_list_of_prompts_is_answered_as_each_alone(client: OpenAI) -> None:
    prompts = ["Hello", "What", "abc"]
    together = complete(client, prompt=prompts, n=2)
    alone = [choice.text for prompt in prompts for choice in complete(client, prompt=prompt, n=2).choices]
    assert [choice.text for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == list(range(6))


def test_a_stop_string_ends_the_text_before_it_wherever_tokens_end(client: OpenAI) -> None:
    whole = complete(client).choices[0].text
    for length in (1, 2, 3, 5):
        stop = whole[7 : 7 + length]
        at = whole.index(stop)
        answer = complete(client, stop=stop, extra_body={"return_token_ids": True})
        assert answer.choices[0].text == whole[:at]
        assert answer.choices[0].finish_reason == "stop"
        assert len(answer.choices[0].token_ids) == at + length == answer.usage.completion_tokens


def test_token_ids_go_in_and_come_out(client: OpenAI) -> None:
    by_text = chat(client, extra_body={"return_token_ids": True})
    by_ids = chat(client, messages=[], extra_body={"return_token_ids": True, "prompt_token_ids": HELLO_IDS})
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == HELLO_IDS
    assert by_text.choices[0].token_ids == by_ids.choices[0].token_ids
    completion = complete(client, prompt=HELLO_IDS, extra_body={"return_token_ids": True}).choices[0]
    assert completion.prompt_token_ids == HELLO_IDS
    assert completion.token_ids == by_text.choices[0].token_ids
    assert complete(client, prompt=[HELLO_IDS, HELLO_IDS]).choices[1].text == completion.text


def test_greedy_ignores_the_seed(client: OpenAI) -> None:
    texts = {chat(client, temperature=0, seed=seed).choices[0].message.content for seed in range(3)}
    assert len(texts) == 1


def test_content_in_parts_and_the_developers_role(client: OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    assert chat(client, messages=parts).choices == chat(client).choices
    spoken = [{"role": role, "content": "x"} for role in ("developer", "system")]
    assert chat(client, messages=spoken[:1]).choices == chat(client, messages=spoken[1:]).choices


def test_a_long_prompt_is_refused_with_counts_or_cut_where_asked(client: OpenAI) -> None:
    error = refusal(complete, client, prompt="x" * 120)
    assert error.status_code == 400
    assert error.body["code"] == "context_length_exceeded"
    assert "120 prompt + 24 new tokens make 144; the context is 128 tokens" in error.body["message"]
    ids = HELLO_IDS * 20
    cut = complete(client, prompt=ids, extra_body={"truncate_prompt_tokens": -1, "return_token_ids": True})
    assert cut.choices[0].prompt_token_ids == ids[-104:]
    short = complete(client, prompt=ids, extra_body={"truncate_prompt_tokens": 10, "return_token_ids": True})
    assert short.choices[0].prompt_token_ids == ids[-10:]


def test_without_a_limit_a_chat_goes_on_to_the_end_of_the_context(client: OpenAI) -> None:
    answer = chat(client, max_tokens=openai.omit, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 128
    assert complete(client, max_tokens=openai.omit, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature = -1: Input should be greater than or equal to 0"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"n": 0}, "n = 0"),
        ({"stop": ""}, 'stop is ""'),
        ({"stop": "é"}, "stop = 'é' can never occur"),
        ({"frequency_penalty": 0.5}, "frequency_penalty = 0.5 is not supported; only 0 can be given"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 3, "logprobs": True}, "top_logprobs is 3"),
        ({"max_tokens": 10, "max_completion_tokens": 11}, "max_completion_tokens is 11, but max_tokens is 10"),
        ({"logit_bias": {"96": 1.0}}, "logit_bias['96'] is no token id"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "only text parts"),
        ({"messages": [{"role": "user", "content": "é"}]}, "has no tokens for the text"),
        ({"extra_body": {"min_tokens": 30}}, "min_tokens is 30, more than the 24 tokens of max_tokens"),
        ({"extra_body": {"prompt_token_ids": [5, 95]}}, "prompt_token_ids[1] = 95 is outside the vocabulary; token ids are 0 to 94"),
        ({"extra_body": {"prompt_token_ids": []}}, "prompt_token_ids is empty"),
        ({"extra_body": {"max_token": 3}}, "max_token is no field of this request; did you mean max_tokens"),
        ({"extra_body": {"weight_version": 3}}, "weight_version = 3 is not loaded; version 0 is"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "does not show them to the model"),
        ({"model": "huge"}, "there is no model 'huge' here; there is 'tiny'"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "cannot be set by chat_template_kwargs"),
        ({"n": 100, "max_tokens": 1000}, "the context is 128 tokens"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_that_cannot_be_answered_is_told_why(client: OpenAI, fields: dict[str, Any], words: str, stream: bool) -> None:
    fields = {"messages": HELLO, "model": "tiny", "max_tokens": 24, "stream": stream} | fields
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**fields)
    assert words in caught.value.body["message"]
    assert caught.value.status_code == (404 if "there is no model" in words or "is not loaded" in words else 400)


def test_all_problems_of_a_request_are_told_at_once(client: OpenAI) -> None:
    error = refusal(chat, client, temperature=-1, n=0, frequency_penalty=1, extra_body={"temprature": 2})
    for words in (
        "temperature = -1",
        "n = 0",
        "frequency_penalty = 1 is not supported",
        "temprature is no field",
        "did you mean temperature",
    ):
        assert words in error.body["message"]


def test_prompts_that_are_no_prompts(client: OpenAI) -> None:
    assert "the prompt is empty" in refusal(complete, client, prompt="").body["message"]
    assert "prompt is empty" in refusal(complete, client, prompt=[]).body["message"]
    assert "outside the vocabulary" in refusal(complete, client, prompt=[1, -1]).body["message"]
    assert "stream_options needs" in refusal(complete, client, stream_options={"include_usage": True}).body["message"]
    assert "logprobs is 5" in refusal(complete, client, logprobs=5).body["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"prompt": ' + b"[" * 100_000, b"\xff", b'{"prompt": "\\ud800"}', b'{"temperature": NaN, "prompt": "a"}'],
    ids=["empty", "broken", "list", "deep", "no UTF-8", "surrogate", "NaN"],
)
def test_a_body_that_is_no_request(server: Running, body: bytes) -> None:
    response = httpx.post(f"{server.url}/v1/completions", content=body, headers={"Authorization": f"Bearer {KEY}"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_what_is_not_there_is_told_in_the_same_form(server: Running, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no POST /v1/nothing here"):
        client.post("/nothing", cast_to=object)
    headers = {"Authorization": f"Bearer {KEY}"}
    assert httpx.get(f"{server.url}/v1/chat/completions", headers=headers).json()["error"]["message"].endswith("takes no GET")
    assert httpx.post(f"{server.url}/v1/completions", content=b" " * (33 << 20), headers=headers).status_code == 413


def test_models_are_listed(client: OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == ("tiny", 128)
    assert client.models.retrieve("tiny") == card
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_wrong_key_is_refused_and_health_needs_none(server: Running) -> None:
    for key in ("wrong", "k-tes", "k-test1"):
        with pytest.raises(openai.AuthenticationError, match="API key is missing or wrong"):
            server.client(key=key).models.list()
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert json.loads(server.get("/health")) == {"status": "ok", "weight_version": 0}


def test_metrics_count_what_was_done(server: Running, client: OpenAI) -> None:
    before = [server.figure(name) for name in ('requests_total{endpoint="chat",outcome="ok"}', "completion_tokens_total")]
    used = chat(client).usage.completion_tokens
    after = [server.figure(name) for name in ('requests_total{endpoint="chat",outcome="ok"}', "completion_tokens_total")]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, used]
    assert server.figure("time_to_first_token_seconds_count") > 0
    assert server.figure('inter_token_seconds_bucket{le="+Inf"}') == server.figure("inter_token_seconds_count") > 0
    assert server.figure("up") == 1


def test_the_next_turn_of_a_chat_begins_where_the_last_prompt_ended(server: Running, client: OpenAI) -> None:
    """In whole pages of 64 tokens; this prompt is one of them and a few tokens."""
    names = ("prefilled_tokens_total", "reused_tokens_total")
    first = {"messages": [{"role": "user", "content": "tell me " * 8}], "max_tokens": 8}
    said = chat(client, **first).choices[0].message.content
    turn = [*first["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    before = [server.figure(name) for name in names]
    answer = chat(client, messages=turn, max_tokens=8)
    prefilled, reused = (server.figure(name) - old for name, old in zip(names, before, strict=True))
    assert reused == 64
    assert prefilled == answer.usage.prompt_tokens - 1 - 64
    assert chat(client, messages=turn, max_tokens=8).choices == answer.choices


def test_sampling_settings_reach_the_engine(client: OpenAI) -> None:
    greedy = complete(client, temperature=0).choices[0].text
    for body in ({"top_k": 1}, {"min_p": 0.999}):
        assert complete(client, extra_body=body).choices[0].text == greedy
    assert complete(client, top_p=1e-6).choices[0].text == greedy
    assert (
        complete(client, extra_body={"top_k": -1}).choices == complete(client, extra_body={"top_k": 0}).choices == complete(client).choices
    )
    assert set(complete(client, logit_bias={"35": 100}).choices[0].text) == {"A"}
    assert complete(client, logit_bias={"0": 100}).choices[0].finish_reason == "stop"
    assert complete(client, logit_bias={"0": 100}).usage.completion_tokens == 1


def test_tokens_that_end_a_sample_can_be_named_or_passed_over(client: OpenAI) -> None:
    ending = {"logit_bias": {"0": 100}}
    fields = {"extra_body": {"min_tokens": 5, "return_token_ids": True}}
    choice = complete(client, **ending, **fields).choices[0]
    assert (len(choice.token_ids), choice.token_ids.index(0), choice.finish_reason) == (6, 5, "stop")
    passed = complete(client, **ending, extra_body={"ignore_eos": True, "return_token_ids": True}).choices[0]
    assert (passed.token_ids, passed.text, passed.finish_reason) == ([0] * 24, "", "length")
    whole = complete(client).choices[0].text
    wanted = ALPHABET.index(whole[5]) + 1
    named = complete(client, extra_body={"stop_token_ids": [wanted]}).choices[0]
    assert (named.text, named.finish_reason) == (whole[: whole.index(whole[5])], "stop")
