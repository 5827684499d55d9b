"""Many clients at once and a real server process: none lost or mixed up, those who leave free their slots, signals end it cleanly."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from slipstream.cli.main import app
from slipstream.core.errors import UsageError
from tests.cli.test_usage import refused
from tests.runtime.serving import Running, serving, write_tiny_model

STREAMS = 200
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("load"), "--slots", "16", "--max-tokens", "128") as running:
        yield running
        assert running.stop(signal.SIGINT) == ""


def request_of(number: int) -> dict[str, Any]:
    """Requests of many kinds, each with a seed of its own."""
    stop = {"stop": ["e", "th"]} if number % 3 == 0 else {}
    return {"model": "tiny", "prompt": f"Request {number % 7}", "max_tokens": 4 + number % NEW_TOKENS, "seed": number, **stop}


async def streamed(client: openai.AsyncOpenAI, number: int) -> tuple[str, str | None]:
    text, finish = "", None
    async for chunk in await client.completions.create(**request_of(number), stream=True):
        text += chunk.choices[0].text
        finish = chunk.choices[0].finish_reason or finish
    return text, finish


def test_two_hundred_streams_at_once_lose_nothing_and_mix_nothing(server: Running) -> None:
    async def body() -> list[tuple[str, str | None]]:
        async with server.async_client() as client:
            return await asyncio.gather(*(streamed(client, number) for number in range(STREAMS)))

    found = asyncio.run(body())
    client = server.client()
    for number in range(STREAMS):
        choice = client.completions.create(**request_of(number)).choices[0]
        assert found[number] == (choice.text, choice.finish_reason), number
    server.wait_idle()


def test_clients_that_leave_disturb_nobody(server: Running) -> None:
    """Half of them leave after their first tokens, or before; the others' texts are as ever."""
    cancelled = server.figure('requests_total{endpoint="completions",outcome="cancelled"}')

    async def leave(client: openai.AsyncOpenAI, number: int) -> None:
        fields = {"model": "tiny", "prompt": "abc", "max_tokens": 120, "extra_body": {"ignore_eos": True}}
        if number % 4 == 1:
            stream = await client.completions.create(**fields, stream=True)
            await anext(stream)
            await stream.close()
        else:
            asked = asyncio.create_task(client.completions.create(**fields, n=2))
            await asyncio.sleep(0.02)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def body() -> list[Any]:
        async with server.async_client() as client:
            return await asyncio.gather(*(leave(client, number) if number % 2 else streamed(client, number) for number in range(60)))

    found = asyncio.run(body())
    server.wait_idle()
    assert server.figure('requests_total{endpoint="completions",outcome="cancelled"}') > cancelled
    client = server.client()
    for number in range(0, 60, 2):
        assert found[number][0] == client.completions.create(**request_of(number)).choices[0].text


def test_a_full_server_refuses_and_one_told_to_stop_lets_its_streams_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--slots", "2", "--max-waiting", "2", "--max-tokens", "512", key=None) as server:
        client = server.client()
        with pytest.raises(openai.BadRequestError, match="at most 4 at a time"):
            client.completions.create(model="tiny", prompt="a", n=5)

        async def body() -> list[Any]:
            async with server.async_client() as many:
                calls = [many.completions.create(model="tiny", prompt="a", max_tokens=100, seed=1) for _ in range(12)]
                return await asyncio.gather(*calls, return_exceptions=True)

        answers = asyncio.run(body())
        served = [answer.choices[0].text for answer in answers if not isinstance(answer, openai.RateLimitError)]
        assert 4 <= len(served) < 12
        assert served == [client.completions.create(model="tiny", prompt="a", max_tokens=100, seed=1).choices[0].text] * len(served)
        server.wait_idle()

        async def last() -> int:
            async with server.async_client() as client:
                fields = {"model": "tiny", "prompt": "a", "max_tokens": 500, "extra_body": {"ignore_eos": True}}
                streams = [await client.completions.create(**fields, stream=True) for _ in range(3)]
                server.process.send_signal(signal.SIGTERM)
                return sum([chunk.choices[0].finish_reason == "length" for stream in streams async for chunk in stream])

        assert asyncio.run(last()) == 3
        _, errors = server.process.communicate(timeout=60)
        assert (server.process.returncode, errors) == (0, "")


def test_what_cannot_be_served_is_told(server: Running, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    assert "cannot be used" in refused("serve", "--model", str(server.model), "--port", port)

    def told(*options: str) -> str:
        with pytest.raises(UsageError) as caught:
            app(["serve", "--model", str(tmp_path / "m"), "--port", "0", *options], standalone_mode=False)
        return str(caught.value)

    assert "no config.json" in told()
    write_tiny_model(tmp_path / "m")
    assert "--max-tokens 100000: a prompt and a completion need 2 to 512" in told("--max-tokens", "100000")
    assert "--slots 0: must be at least 1" in told("--slots", "0")
    assert "--drain -1.0: must not be negative" in told("--drain", "-1")
    (tmp_path / "key").write_text("\n")
    assert "holds no key" in told("--api-key-file", str(tmp_path / "key"))
    assert "cannot be read" in told("--api-key-file", str(tmp_path / "absent"))
    (tmp_path / "m" / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    assert "unheard-of" in told()
