"""The server around a scripted engine: tool calls, weights that change, clients that leave, an engine that fails."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2 as httpx
import openai
import pytest

from slipstream.core.errors import RunFailed
from slipstream.core.records import WeightVersion
from slipstream.runtime.serve.model import LocalModel
from tests.runtime.scripted import ScriptedSampler, local_model, scripted_server
from tests.text.small_tokenizers import byte_level
from tests.text.templates import QWEN25

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
ASKED = [{"role": "user", "content": "1+2?"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'


def model() -> LocalModel:
    return local_model(byte_level(("<|im_start|>", "<|im_end|>"), plain=("<tool_call>", "</tool_call>")), QWEN25)


def saying(text: str, *, slots: int = 2) -> ScriptedSampler:
    tokenizer = model().tokenizer
    ids = [*tokenizer.encode(text).tolist(), tokenizer.stop_ids[0]]
    return ScriptedSampler(lambda request: ids, slots=slots, stop_ids=tokenizer.stop_ids)


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    return await client.chat.completions.create(model="scripted", **{"messages": ASKED, **fields})


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())


def test_tool_calls_are_read_whole_and_streamed() -> None:
    async def body() -> None:
        async with scripted_server(saying(f"Let me see.\n{CALL}\n{CALL}"), model()) as (client, _, _):
            answer = await ask(client, tools=TOOLS)
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me see."
            assert [call.function.name for call in choice.message.tool_calls] == ["add", "add"]
            assert json.loads(choice.message.tool_calls[0].function.arguments) == {"a": 1, "b": "é"}
            assert len({call.id for call in choice.message.tool_calls}) == 2
            async with client.chat.completions.stream(model="scripted", messages=ASKED, tools=TOOLS) as stream:
                final = (await stream.get_final_completion()).choices[0]
            assert final.finish_reason == "tool_calls"
            assert final.message.content == "Let me see."
            assert [call.function.arguments for call in final.message.tool_calls] == [
                call.function.arguments for call in choice.message.tool_calls
            ]

    run(body)


def test_a_conversation_with_calls_and_results_goes_back_through_the_template() -> None:
    async def body() -> None:
        async with scripted_server(saying(CALL), model()) as (client, _, _):
            message = (await ask(client, tools=TOOLS)).choices[0].message
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
            told = [*ASKED, message.model_dump(exclude_none=True), result]
            answer = await ask(client, messages=told, tools=TOOLS, extra_body={"return_token_ids": True})
            prompt = model().tokenizer.backend.decode(answer.prompt_token_ids, skip_special_tokens=False)
            assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>' in prompt
            assert "<tool_response>\n3\n</tool_response>" in prompt

    run(body)


def test_without_tools_or_with_a_broken_call_the_text_stays() -> None:
    async def body() -> None:
        async with scripted_server(saying(CALL), model()) as (client, _, _):
            for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
                choice = (await ask(client, **fields)).choices[0]
                assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")
            with pytest.raises(openai.BadRequestError, match="tool_choice"):
                await ask(client, tools=TOOLS, tool_choice="required")
        async with scripted_server(saying("<tool_call>\n{oops\n</tool_call>"), model()) as (client, _, _):
            choice = (await ask(client, tools=TOOLS)).choices[0]
            assert (choice.message.content, choice.finish_reason) == ("<tool_call>\n{oops\n</tool_call>", "stop")

    run(body)


def test_characters_split_over_tokens_and_stop_strings_in_them() -> None:
    text = "naïve 東京 😀 café"

    async def body() -> None:
        async with scripted_server(saying(text), model()) as (client, _, _):
            pieces = [chunk async for chunk in await ask(client, stream=True, logprobs=True)]
            assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
            entries = [entry for piece in pieces if piece.choices[0].logprobs for entry in piece.choices[0].logprobs.content]
            assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text + "<|im_end|>"
            for stop in ("京 ", "😀", "fé", "ïve 東"):
                choice = (await ask(client, stop=[stop])).choices[0]
                assert (choice.message.content, choice.finish_reason) == (text.partition(stop)[0], "stop")

    run(body)


def test_tokens_that_come_before_the_engine_hears_of_the_end_are_dropped() -> None:
    """The event loop is held up: when it goes on, tokens behind the stop string have already arrived."""

    async def body() -> None:
        texts = [model().tokenizer.encode(text).tolist() for text in ("abc" + "x" * 100, "x" * 20 + "c" + "x" * 100)]
        sampler = ScriptedSampler(lambda request: texts[request.key[1]])
        async with scripted_server(sampler, model()) as (client, _, _):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client, stop=["c"], n=2))
            await until(lambda: bool(sampler.threads))
            sampler.gate.set()
            deadline = time.monotonic() + 60
            while sampler.steps < 30 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert [choice.message.content for choice in (await asked).choices] == ["ab", "x" * 20]

    run(body)


def test_spans_tell_which_weights_drew_which_tokens() -> None:
    async def body() -> None:
        sampler = saying("x" * 40)
        async with scripted_server(sampler, model()) as (client, service, url):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client, extra_body={"return_token_ids": True}))
            await until(lambda: bool(sampler.threads))
            loaded = service.load(WeightVersion(lineage=0, version=7, params=None))
            sampler.gate.set()
            choice = (await asked).choices[0]
            assert await asyncio.wrap_future(loaded) == 7
            spans = choice.weight_versions
            assert [span["version"] for span in spans] == [0, 7]
            assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], len(choice.token_ids))
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url}/health")).json()["weight_version"] == 7

    run(body)


def test_a_request_for_one_version_never_mixes() -> None:
    async def body() -> None:
        sampler = saying("x" * 40)
        async with scripted_server(sampler, model()) as (client, service, _):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client, extra_body={"weight_version": 0}))
            await until(lambda: bool(sampler.threads))
            service.load(WeightVersion(lineage=0, version=1, params=None))
            sampler.gate.set()
            with pytest.raises(openai.ConflictError, match="weight_version = 0 was replaced while it was sampling"):
                await asked
            with pytest.raises(openai.NotFoundError, match="weight_version = 0 is not loaded; version 1 is"):
                await ask(client, extra_body={"weight_version": 0})
            assert (await ask(client, extra_body={"weight_version": 1})).choices[0].weight_versions[0]["version"] == 1

    run(body)


def test_what_the_engine_refuses_is_the_requests_own_error() -> None:
    async def body() -> None:
        async with scripted_server(saying("Yes."), model()) as (client, _, _):
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError, match="top_k = 13 brings bad luck"):
                    await ask(client, stream=stream, n=2, extra_body={"top_k": 13})
            assert (await ask(client)).choices[0].message.content == "Yes."

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(stream: bool) -> None:
    async def body() -> None:
        sampler = saying("x" * 1000, slots=1)
        async with scripted_server(sampler, model()) as (client, service, url):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client, stream=stream))
            await until(lambda: bool(sampler.threads))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            async with httpx.AsyncClient() as http:
                async with asyncio.timeout(60):
                    while 'outcome="cancelled"} 1' not in (await http.get(f"{url}/metrics")).text:
                        await asyncio.sleep(0.01)
            sampler.gate.set()
            await until(lambda: (service.figures().running, service.figures().waiting) == (0, 0))
            assert sampler.steps < 1000

    run(body)


def test_beyond_the_limit_requests_are_told_to_come_back() -> None:
    async def body() -> None:
        sampler = saying("Yes.", slots=1)
        async with scripted_server(sampler, model(), slots=1, max_waiting=2) as (client, _, _):
            sampler.gate.clear()
            asked = [asyncio.create_task(ask(client)) for _ in range(2)]
            await until(lambda: bool(sampler.threads))
            await asyncio.sleep(0.1)
            with pytest.raises(openai.RateLimitError) as caught:
                await ask(client, n=2)
            assert caught.value.response.headers["Retry-After"] == "1"
            with pytest.raises(openai.BadRequestError, match="takes at most 3 at a time"):
                await ask(client, n=4)
            sampler.gate.set()
            assert [(await one).choices[0].message.content for one in asked] == ["Yes.", "Yes."]
            assert len((await ask(client, n=3)).choices) == 3

    run(body)


def test_an_engine_that_fails_fails_every_request_and_turns_health_red() -> None:
    async def body() -> None:
        sampler = saying("x" * 100)
        async with scripted_server(sampler, model()) as (client, _, url):
            sampler.gate.clear()
            whole = asyncio.create_task(ask(client))
            await until(lambda: bool(sampler.threads))
            sampler.failure = RunFailed("the weights are broken")
            sampler.gate.set()
            with pytest.raises(openai.InternalServerError, match="the engine has failed: the weights are broken") as caught:
                await whole
            assert caught.value.status_code == 503
            with pytest.raises(openai.InternalServerError, match="the weights are broken"):
                await ask(client)
            async with httpx.AsyncClient() as http:
                health = await http.get(f"{url}/health")
                assert (health.status_code, health.json()["status"]) == (503, "the engine has failed: the weights are broken")
                assert "slipstream_up 0" in (await http.get(f"{url}/metrics")).text

    run(body)


def test_a_failure_in_a_stream_is_told_in_the_stream() -> None:
    async def body() -> None:
        sampler = saying("x" * 1000)
        async with scripted_server(sampler, model()) as (client, _, _):
            sampler.failure, sampler.fails_at = RunFailed("the weights are broken"), 3
            stream = await ask(client, stream=True)
            with pytest.raises(openai.APIError, match="the weights are broken"):
                _ = [chunk async for chunk in stream]

    run(body)


def test_shutting_down_lets_requests_end_and_takes_no_more() -> None:
    async def body() -> None:
        sampler = saying("Yes.", slots=1)
        async with scripted_server(sampler, model()) as (client, service, _):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client))
            await until(lambda: bool(sampler.threads))
            draining = asyncio.create_task(service.drain(60.0, asyncio.Event()))
            await asyncio.sleep(0)
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await ask(client)
            sampler.gate.set()
            assert (await asked).choices[0].message.content == "Yes."
            assert await draining

    run(body)


def test_what_does_not_end_in_time_is_told_so() -> None:
    async def body() -> None:
        sampler = saying("Yes.", slots=1)
        async with scripted_server(sampler, model()) as (client, service, _):
            sampler.gate.clear()
            asked = asyncio.create_task(ask(client))
            await until(lambda: bool(sampler.threads))
            assert not await service.drain(0.05, asyncio.Event())
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await asked

    run(body)
