"""A sampler's own figures over real HTTP: with the token, at the address that was told, whatever happens to its lease."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from slipstream.core.errors import UsageError
from slipstream.runtime.join.address import Address, JoinSettings
from slipstream.runtime.processes.sampler_metrics import Latest

SETTINGS = JoinSettings(address=Address(url="http://127.0.0.1:1", token="secret"), host="127.0.0.1")


@pytest.fixture
def served(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[Latest, str]]:
    latest = Latest()
    with latest.served(SETTINGS, 0):
        found = re.search(r"figures at (http://127\.0\.0\.1:\d+/metrics)", capsys.readouterr().err)
        assert found
        yield latest, found[1]
        latest.check()


def ask(url: str, token: str = "secret") -> tuple[int, str]:
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def note(latest: Latest, tokens: int, epoch: int) -> None:
    """A turn of a sampler."""
    dispatch: Any = SimpleNamespace(tokens=tokens, episodes=SimpleNamespace(open=6))
    engine: Any = SimpleNamespace(version=3, running=lambda: 4, waiting=lambda: 2)
    phases: Any = SimpleNamespace(seconds=lambda: {"generate": 2.5, "wait": 0.5})
    latest.note(dispatch, engine, phases, epoch)


def test_the_last_turn_is_told_and_tokens_count_on_over_epochs(served: tuple[Latest, str]) -> None:
    latest, url = served
    assert "slipstream_sampler_version -1\n" in ask(url)[1]
    for tokens, epoch in ((50, 1), (100, 1), (7, 2), (9, 2)):
        note(latest, tokens, epoch)
    status, text = ask(url)
    assert status == 200
    lines = set(text.splitlines())
    assert "# TYPE slipstream_sampler_tokens_total counter" in lines
    for line in (
        "version 3",
        "running 4",
        "waiting 2",
        "episodes 6",
        "epoch 2",
        "tokens_total 109",
        'phase_seconds_total{phase="wait"} 0.5',
    ):
        assert f"slipstream_sampler_{line}" in lines, text


def test_strangers_and_a_taken_port_are_told_so(served: tuple[Latest, str]) -> None:
    _, url = served
    assert ask(url, "wrong") == (401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN\n")
    assert ask(f"{url}/more")[0] == 404
    port = int(url.split(":")[2].split("/")[0])
    with (
        pytest.raises(UsageError, match=rf"--metrics-port {port} cannot be used: .*; --metrics-port 0 takes any free port"),
        Latest().served(SETTINGS, port),
    ):
        pass
    with Latest().served(SETTINGS, None):  # off by default
        pass
