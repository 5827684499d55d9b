"""The benchmark of conversations draws the same either way, needs fewer tokens with kept pages, and fails where a bit differs."""

from dataclasses import replace
from typing import Any

import pytest

from slipstream.cli.bench import turns
from slipstream.core.errors import RunFailed
from tests.engine.small import SPEC, params


def test_kept_pages_save_tokens_and_a_single_bit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = []
    play = turns._play
    monkeypatch.setattr(turns, "_play", lambda *arguments, **options: played.append(play(*arguments, **options)) or played[-1])
    again, kept = turns._compared(SPEC, params(0), "f32", True, 2, 8)
    assert (again["kept"], kept["kept"]) == (False, True)
    assert again["drawn_tokens"] == kept["drawn_tokens"] > 0
    assert again["reused_tokens"] == 0 < kept["reused_tokens"]
    assert again["prefilled_tokens"] - kept["prefilled_tokens"] == kept["reused_tokens"]

    _, one, _, other = played  # each after one that warms up
    first, *rest = other.samples
    logprobs = first.logprobs.copy()
    logprobs.view("int32")[0] ^= 1
    results = iter([one, one, other, replace(other, samples=[replace(first, logprobs=logprobs), *rest])])
    monkeypatch.setattr(turns, "_engine", lambda *arguments: None)
    monkeypatch.setattr(turns, "_play", lambda *arguments, **options: next(results))
    with pytest.raises(RunFailed, match="drawn otherwise where pages are kept"):
        turns._compared(SPEC, params(0), "f32", True, 2, 8)
