"""The graders of rows by the name that `task.grader` takes: each says what it has against a row, and judges a reply to it."""

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from slipstream.core.records import Outcome
from slipstream.envs.canaries import TEXT_GRADERS
from slipstream.envs.catalog.entry import Item, Meaning
from slipstream.envs.countdown import grade_countdown
from slipstream.envs.graders import final_number, grade_exact, grade_final_number
from slipstream.envs.reward_pool import OpenRewards
from slipstream.envs.verifiers.verifier import Judge, Verifier, lasting_failures


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGrader:
    """One way to judge replies to rows."""

    name: str  # for people
    problem: Callable[[Meaning], str | None]  # why a row cannot be judged, None where it can
    grade: Callable[[Item, str], Outcome]
    failed_canaries: Callable[[], list[str]] = list  # a sentence for each known example that gets the wrong verdict


def with_form(outcome: Outcome, weight: float) -> Outcome:
    """The outcome with `weight` added to its reward for the asked form."""
    if outcome.reward is None or not outcome.format_ok or not weight:
        return outcome
    return replace(outcome, reward=outcome.reward + weight)


def row_grader(name: str, answer_field: str = "answer") -> RowGrader:
    """The grader of that name. Those of verifiers start their processes with the first reply and end them with the program."""
    if name not in TEXT_GRADERS:
        return _verified(name)
    problem, grade = {
        "exact": (_nothing, _exact),
        "final_number": (lambda meaning: _no_number(meaning, answer_field), _final_number),
        "countdown": (_no_numbers, _countdown),
    }[name]
    return RowGrader(name=name, problem=problem, grade=grade, failed_canaries=TEXT_GRADERS[name].failed)


def scored(address: str, seconds: float, workers: int) -> RowGrader:
    """A function of the user as grader, called in processes that start with the first reply and end with the program."""
    rewards = OpenRewards(address, seconds, workers)
    return RowGrader(name=f"task.reward = {address!r}", problem=_nothing, grade=lambda item, reply: rewards.score(item.row.fields, reply))


class OpenJudge:
    """A verifier that is opened with the first row, by whatever thread brings it, and closed when nobody holds this any more."""

    def __init__(self, verifier: Verifier, workers: int) -> None:
        self._verifier, self._workers = verifier, workers
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._judge: Judge | None = None
        self.close = weakref.finalize(self, self._stack.close)  # also runs at the end of the interpreter

    def grade(self, row: Mapping[str, Any]) -> Outcome:
        return self._opened().submit(row).result()

    def failed_canaries(self) -> list[str]:
        return lasting_failures(self._verifier, self._opened())

    def _opened(self) -> Judge:
        with self._lock:
            if self._judge is None:
                self._judge = self._stack.enter_context(self._verifier.open(self._workers))
            return self._judge


def _verified(name: str, workers: int = 2) -> RowGrader:
    from slipstream.envs.verifiers.registry import find_verifier  # lazily: verifiers bring libraries that other graders do not need

    verifier = find_verifier(name)
    judge = OpenJudge(verifier, workers)
    return RowGrader(
        name=f"{name} verifier",
        problem=lambda meaning: verifier.problem({**meaning.judged, "response": ""}),
        grade=lambda item, reply: judge.grade({"id": item.id, **item.meaning.judged, "response": reply}),
        failed_canaries=judge.failed_canaries,
    )


def _exact(item: Item, reply: str) -> Outcome:
    return grade_exact(item.meaning.answer, reply)


def _final_number(item: Item, reply: str) -> Outcome:
    answer = final_number(item.meaning.answer)
    assert answer is not None  # rows without a number were left out
    return grade_final_number(answer, reply)


def _countdown(item: Item, reply: str) -> Outcome:
    judged = item.meaning.judged
    return grade_countdown(tuple(judged["numbers"]), judged["target"], reply)


def _nothing(_: Meaning) -> str | None:
    return None


def _no_number(meaning: Meaning, field: str) -> str | None:
    return None if final_number(meaning.answer) is not None else f"no number in field {field!r}"


def _no_numbers(meaning: Meaning) -> str | None:
    return None if "numbers" in meaning.judged else "no numbers and target for the countdown grader"
