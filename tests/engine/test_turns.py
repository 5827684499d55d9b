"""Turns of conversations begin behind the pages that are kept of the turn before, and nothing of them changes by it.

What is compared are bits. In exact mode the same is an arrangement of `tests.engine.exact`.
"""

from typing import Any

import numpy as np
import pytest

from slipstream.core.records import Sample, WeightVersion
from slipstream.engine.engine import Engine
from slipstream.engine.scheduler import Scheduler
from tests.engine.small import assert_same, drain, engine, params, request, weights

TURNS, NEW, OTHERS = 4, 5, 4  # turns of a conversation, tokens that the model draws in each, and that are said to it after each
PROMPTS = [np.arange(1, 12) % 17, np.arange(1, 12) % 17, np.arange(3, 23) % 17]  # two begin alike


def turned(**options: Any) -> Engine:
    return engine(max_tokens=64, page_tokens=8, **options)


def turn(running: Engine, number: int, histories: list[list[int]]) -> dict[str, Sample]:
    """The next of all conversations; `histories` go on by what is drawn and answered."""
    found = drain(running, [request(f"c{c} t{number}", ids, new=NEW, stop_ids=()) for c, ids in enumerate(histories)])
    for c, ids in enumerate(histories):
        ids += [*found[f"c{c} t{number}"].completion_ids.tolist(), *np.random.default_rng([c, number]).integers(0, 17, OTHERS).tolist()]
    return found


def conversations(running: Engine) -> dict[str, Sample]:
    histories = [prompt.tolist() for prompt in PROMPTS]
    return {name: sample for number in range(TURNS) for name, sample in turn(running, number, histories).items()}


@pytest.fixture(scope="module")
def plain() -> dict[str, Sample]:
    return conversations(turned(keep_ended=False))


@pytest.mark.parametrize("others", [0, 19])
def test_kept_pages_spare_the_prefill_and_change_no_bit(plain: dict[str, Sample], others: int) -> None:
    """Also where some of them are given up before their turn comes: three conversations end with 5 to 7 pages each."""
    running = turned()
    running._scheduler.pool.take(others)  # of 32
    found = conversations(running)
    for name, sample in found.items():
        assert_same(sample, plain[name])
    again = turned(keep_ended=False)
    conversations(again)
    assert again.reused_tokens == 0
    assert running.prefilled_tokens + running.reused_tokens == again.prefilled_tokens
    grown = [len(prompt) - 1 + number * (NEW + OTHERS) for prompt in PROMPTS for number in range(TURNS - 1)]  # prefilled in each turn
    everything = sum(tokens // 8 * 8 for tokens in grown) - 8 * (TURNS - 1)  # the page with which two of them begin counts once
    assert 0 < running.reused_tokens <= everything
    assert (running.reused_tokens == everything) == (others == 0)


def test_in_fast_mode_drawn_tokens_would_change_bits(plain: dict[str, Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are not kept there, and the comparison above can see."""
    running = turned()
    monkeypatch.setattr(running._scheduler, "_keep", "all")
    found = conversations(running)
    assert any(not np.array_equal(sample.logprobs, plain[name].logprobs) for name, sample in found.items())


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("stale", [False, True])
def test_what_is_kept_goes_with_the_weights(version: int, stale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number. A page of the old ones that stays is found out: the turn is not what the new ones alone draw."""
    if stale:
        monkeypatch.setattr(Scheduler, "new_weights", lambda s: None)
        monkeypatch.setattr(Scheduler, "plan", lambda s, _, plan=Scheduler.plan: plan(s, 0))
    histories = [prompt.tolist() for prompt in PROMPTS]
    running, fresh = turned(), turned(keep_ended=False)
    turn(running, 0, histories)
    others = [list(ids) for ids in histories]
    for one in (running, fresh):
        one.load(WeightVersion(lineage=1, version=version, params=params(1)))
    found, expected = turn(running, 1, histories), turn(fresh, 1, others)
    same = [np.array_equal(sample.logprobs, expected[name].logprobs) for name, sample in found.items()]
    assert all(same) != stale
    assert (running.reused_tokens > 0) == stale


def test_a_sample_that_meets_new_weights_leaves_nothing_behind() -> None:
    running = turned()
    running.submit(request("a", [1] * 20, new=9, stop_ids=()))
    running.step()
    running.step()
    running.load(weights(1))
    mixed = drain(running)["a"]
    assert set(mixed.versions.tolist()) == {0, 1}
    prompt = [*[1] * 20, *mixed.completion_ids.tolist()]
    fresh = turned()
    fresh.load(weights(1))
    assert_same(drain(running, [request("b", prompt)])["b"], drain(fresh, [request("b", prompt)])["b"])
    assert running.reused_tokens == 0
