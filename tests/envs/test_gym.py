"""Sets of reasoning-gym: problems and scores are the library's own. A small stand-in shows our side; the real one where it is installed."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.config.schema import GymTask
from slipstream.core.errors import UsageError
from slipstream.core.records import OutcomeKind
from slipstream.envs.generated import gym_plan
from slipstream.envs.rows import rows_task
from tests.envs.small_chat import byte_tokenizer, chatml


class Doubles:
    """Asks for the double of a number; gives half a point for a wrong number, and fails on words."""

    def __init__(self, seed: int, size: int, largest: int = 10**6) -> None:
        self.seed, self.size, self.largest = seed, size, largest
        if largest < 1:
            raise AssertionError("largest must be at least 1")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = (self.seed + index) % self.largest
        return {"question": f"2 * {number}?", "answer": str(2 * number), "metadata": {"number": number}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return 1.0 if int(answer or "") == 2 * entry["metadata"]["number"] else 0.5


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_dataset(name: str, **settings: Any) -> Doubles:
        return Doubles(**settings)

    fake = SimpleNamespace(create_dataset=create_dataset, factory=SimpleNamespace(DATASETS={"doubles": None, "triples": None}))
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake)


@pytest.mark.usefixtures("library")
def test_problems_and_scores_are_the_sets_own() -> None:
    task = rows_task(gym_plan(GymTask(name="doubles", size=5, test_size=3, seed=7)), 0, byte_tokenizer(), chatml())
    assert {prompt.text.split("\n")[1] for prompt in task.training} == {f"2 * {number}?" for number in range(7, 12)}
    assert {prompt.text.split("\n")[1] for prompt in task.held_out(9)} == {f"2 * {number}?" for number in range(12, 15)}
    assert task.name == "gym/doubles"
    prompt = next(prompt for prompt in (task.prompt(index) for index in range(5)) if "2 * 9?" in prompt.text)
    told = [task.grade(prompt, f"so <answer>{answer}</answer>") for answer in ("18", "17", "eighteen")]
    assert [(outcome.kind, outcome.reward, outcome.format_ok) for outcome in told] == [
        (OutcomeKind.VALUE, 1.0, True),
        (OutcomeKind.VALUE, 0.5, True),
        (OutcomeKind.INFRASTRUCTURE, None, None),
    ]
    assert told[2].detail.startswith("score_answer raised ValueError: invalid literal")
    assert task.grade(prompt, "18").kind is OutcomeKind.UNPARSEABLE


@pytest.mark.usefixtures("library")
def test_problems_that_come_up_in_both_are_not_trained_on() -> None:
    config = GymTask(name="doubles", size=5, test_size=3, parameters={"largest": 6})
    task = rows_task(gym_plan(config), 0, byte_tokenizer(), chatml())
    assert sorted(prompt.answer for prompt in task.training) == ["4", "6", "8"]
    assert task.notes == ("gym/doubles: 2 questions are also in its held-out problems; left out of training",)


@pytest.mark.usefixtures("library")
def test_wrong_names_and_settings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"task\.name = 'double': reasoning-gym has no such data set; did you mean doubles"):
        gym_plan(GymTask(name="double"))
    with pytest.raises(UsageError, match=r"task\.parameters = .*: set task\.size instead"):
        gym_plan(GymTask(name="doubles", parameters={"size": 3}))
    for parameters in ({"largest": 0}, {"smallest": 0}):
        with pytest.raises(UsageError, match=r"task\.parameters = .*: doubles refuses them"):
            gym_plan(GymTask(name="doubles", parameters=parameters))


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UsageError, match=r"needs the extra 'gym' \(pip install 'slipstream\[gym\]'\)"):
        gym_plan(GymTask(name="basic_arithmetic"))


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: pip install 'slipstream[gym]'")
@pytest.mark.filterwarnings("default")
def test_the_real_library_accepts_its_own_answers() -> None:
    plan = gym_plan(GymTask(name="basic_arithmetic", size=20, test_size=5, parameters={"max_terms": 3}))
    for item in (*plan.train, *plan.test):
        assert plan.grader.grade(item, f"<answer>{item.meaning.answer}</answer>").reward == 1.0
        assert plan.grader.grade(item, "<answer>no</answer>").reward == 0.0
