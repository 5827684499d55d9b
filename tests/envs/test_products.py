"""Products with a calculator: what a call is answered, what counts as the answer, and demonstrations that are what episodes are."""

from contextlib import closing

import numpy as np
import pytest

from slipstream.config.load import load_config
from slipstream.config.schema import ProductsTask
from slipstream.core.clock import SystemClock
from slipstream.core.errors import ConfigError
from slipstream.core.ports import Demonstrator
from slipstream.core.records import EnvironmentTurn, FinishReason, ModelTurn, OutcomeKind
from slipstream.envs.environment import Interactive
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.products import products
from slipstream.loop.sequences import from_demonstration

TASK = products(ProductsTask(), 0)


def answer(text: str, room: int = 24) -> tuple[str, int, int] | tuple[OutcomeKind, float | None, FinishReason]:
    """What the first turn of the first held-out prompt is answered: text, calls and failures so far; or the verdict."""
    ids = np.append(TASK.tokenizer.encode(text), [] if text.endswith("]") else [0]).astype(np.int32)
    turn = ModelTurn(token_ids=ids, text=text, finish_reason=FinishReason.STOP, room=room)
    with closing(EnvironmentHost(TASK, clock=SystemClock())) as host:
        host.answer(("p", 0), TASK.held_out(1)[0], turn)
        assert host.wait(60.0)
        ((_, found),) = host.answered()
    if isinstance(found, EnvironmentTurn):
        return TASK.tokenizer.decode(found.token_ids.tolist())
    return found.outcome.kind, found.outcome.reward, found.finish_reason


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        ("[34x57]", "=1938;"),
        ("12#5[7x8]", "=56;"),
        ("[2x3x4]", "=24;"),
        ("[34]", "=34;"),
        ("[34x]", "?;"),
        ("[]", "?;"),
        ("34x57]", "?;"),
        ("[=3]", "?;"),
        ("#12", (OutcomeKind.WRONG, 0.0, FinishReason.STOP)),
        ("[34x57", (OutcomeKind.UNPARSEABLE, 0.0, FinishReason.STOP)),
        ("=1;", (OutcomeKind.UNPARSEABLE, 0.0, FinishReason.STOP)),
    ],
)
def test_a_turn_is_answered_or_judged(said: str, answered: object) -> None:
    assert answer(said) == answered


def test_what_does_not_fit_ends_the_episode() -> None:
    assert answer("[99x99x99x99x99]", room=8) == (OutcomeKind.UNPARSEABLE, 0.0, FinishReason.LENGTH)
    prompt = TASK.held_out(1)[0]
    assert answer(f"#{prompt.answer}") == (OutcomeKind.VALUE, 1.0, FinishReason.STOP)


def test_prompts_are_split_and_repeat() -> None:
    held_out = {prompt.text for prompt in TASK.held_out(64)}
    trained = {TASK.prompt(index).text for index in range(500)}
    assert len(held_out) == 64
    assert not held_out & trained
    assert [prompt.id for prompt in products(ProductsTask(), 5).held_out(64)] == [prompt.id for prompt in TASK.held_out(64)]
    assert all(len(prompt.token_ids) <= TASK.max_prompt_tokens for prompt in TASK.held_out(64))
    for text in trained:
        a, b = text.removesuffix("=").split("x")
        assert 10 <= int(a) <= 99 >= int(b) >= 10


def test_demonstrations_are_right_and_teach_nothing_that_the_calculator_writes() -> None:
    assert isinstance(TASK, Demonstrator)
    assert isinstance(TASK, Interactive)
    asked = 0
    for index in range(200):
        shown = TASK.demonstration(index, 0.5)
        a, b = TASK.tokenizer.decode(shown.prompt_ids.tolist()).removesuffix("=").split("x")
        said = TASK.tokenizer.decode(shown.completion_ids[shown.loss_mask].tolist())
        told = TASK.tokenizer.decode(shown.completion_ids[~shown.loss_mask].tolist())
        value = int(a) * int(b)
        assert (said, told) in ((f"#{value}", ""), (f"[{a}x{b}]#{value}", f"={value};"))
        assert shown.completion_ids[-1] == 0
        sequence = from_demonstration(shown)
        assert sequence.loss_mask.sum() == len(said) + 1
        asked += bool(told)
    assert 70 < asked < 130


def test_the_recipe_and_its_model_fit() -> None:
    assert isinstance(load_config("calculator").task, ProductsTask)
    with pytest.raises(ConfigError, match="has an alphabet of its own"):
        load_config("calculator", ["model.source.kind=pretrained", "model.source.path=x", "warm_start.stages=[]"])
