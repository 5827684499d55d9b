"""What a verifier is to those who only grade rows: `slipstream grade`, the canaries of a run's start and of `doctor`."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.core.records import Outcome

Row = Mapping[str, Any]


class Judge(Protocol):
    """An open verifier: workers are warm, rows come in from any thread, verdicts come out in any order."""

    def submit(self, row: Row) -> Future[Outcome]:
        """Begin to judge one row that passed `Verifier.problem`. The future always ends in an outcome, never in an error of the row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """An example whose verdict is known."""

    name: str  # e.g. "infinite loop"
    row: Row
    right: bool  # whether it must be rewarded


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """One way to judge, as registered."""

    name: str
    problem: Callable[[Row], str | None]  # what is wrong with a row, naming the field and the fix; None where nothing is
    open: Callable[[int], AbstractContextManager[Judge]]  # with so many workers; closing leaves no process behind
    canaries: Callable[[], tuple[Canary, ...]]


def lasting_failures(verifier: Verifier, judge: Judge) -> list[str]:
    """As `failed_canaries`, judged again before they count: a busy machine may run out of time."""
    return failed_canaries(verifier, judge) and failed_canaries(verifier, judge)


def failed_canaries(verifier: Verifier, judge: Judge) -> list[str]:
    """A sentence for each canary that got the wrong verdict; empty where the verifier can be trusted."""
    begun = [(canary, judge.submit(canary.row)) for canary in verifier.canaries()]
    failures = []
    for canary, future in begun:
        outcome = future.result()
        if (outcome.reward == 1.0) != canary.right:
            wanted = "right" if canary.right else "wrong"
            failures.append(f"{verifier.name} verifier: canary {canary.name!r} must be {wanted}, got {outcome.kind} ({outcome.detail})")
    return failures
