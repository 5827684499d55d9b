"""Known answers: every grader that judges by text alone gives them their verdicts, and worse ones are found out before a run trains."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.config.schema import ArithmeticTask, ProductsTask, SumsTask
from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind, Prompt
from slipstream.envs import arithmetic as arithmetic_module
from slipstream.envs.arithmetic import arithmetic
from slipstream.envs.canaries import TEXT_GRADERS, Canaries
from slipstream.envs.grading import row_grader
from slipstream.envs.products import products
from slipstream.envs.sums import sums
from slipstream.runtime.grader_check import check_grader
from slipstream.telemetry.events import NullEvents
from tests.envs.small_chat import byte_tokenizer, chatml


def right(_: str) -> Outcome:
    return Outcome(kind=OutcomeKind.VALUE, reward=1.0)


def wrong(_: str) -> Outcome:
    return Outcome(kind=OutcomeKind.WRONG, reward=0.0)


CANARIES: dict[str, Callable[[], Canaries]] = {
    **{name: lambda name=name: TEXT_GRADERS[name] for name in TEXT_GRADERS},
    "arithmetic": lambda: arithmetic(ArithmeticTask(), 3).canaries(),
    "products": lambda: products(ProductsTask(), 3).canaries(),
    "sums": lambda: sums(SumsTask(), 3, byte_tokenizer(), chatml()).canaries(),
}


@pytest.mark.parametrize("name", CANARIES)
def test_known_answers_have_their_verdicts_and_graders_of_one_word_are_found_out(name: str) -> None:
    canaries = CANARIES[name]()
    assert canaries.failed() == []
    assert len(replace(canaries, grade=right).failed()) == canaries.count - 1 >= 3
    assert len(replace(canaries, grade=wrong).failed()) == 1
    assert name not in TEXT_GRADERS or row_grader(name).failed_canaries() == []


def test_a_run_does_not_begin_with_a_grader_that_misjudges(monkeypatch: pytest.MonkeyPatch) -> None:
    task = arithmetic(ArithmeticTask(), 0)
    check_grader(task, NullEvents())
    monkeypatch.setattr(arithmetic_module, "judged", lambda prompt, *_: right("") if isinstance(prompt, Prompt) else wrong(""))
    with pytest.raises(RunFailed, match=r"grader of .*addition.* misjudges what it must know.*'#-1' must be wrong"):
        check_grader(task, NullEvents())
