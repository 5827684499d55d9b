"""Canaries of everything that gives rewards: a right answer must be rewarded, a wrong or empty one must not. Called by `doctor`."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from slipstream.config.schema import ArithmeticTask
from slipstream.core.records import Outcome
from slipstream.envs.arithmetic import arithmetic
from slipstream.envs.graders import grade_exact, grade_final_number
from slipstream.envs.verifiers.verifier import Verifier, lasting_failures
from slipstream.runtime.doctor.line import Grade, Line, examined

PART = "verifiers"
_FIX = "rewards of this verifier cannot be trusted here; reinstall, and report it if it stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A grader that judges by text alone, and what it must say to some texts."""

    grade: Callable[[str], Outcome]
    right: str
    wrong: tuple[str, ...]  # the empty one is always among them


def _arithmetic() -> Graded:
    task = arithmetic(ArithmeticTask(), 0)
    prompt = task.prompt(0)
    right = f"#{prompt.answer}"
    return Graded(grade=partial(task.grade, prompt), right=right, wrong=(f"{right}0", prompt.answer, f"{right} ", "#-1"))


GRADERS: dict[str, Callable[[], Graded]] = {
    "arithmetic": _arithmetic,
    "final_number": lambda: Graded(
        grade=partial(grade_final_number, Fraction(42)), right="6 x 7\n#### 42", wrong=("42 or 43", "####", "#### -42")
    ),
    "exact": lambda: Graded(grade=partial(grade_exact, "Paris"), right=" Paris\n", wrong=("paris", "Paris.", "Rome")),
}


def grader_lines() -> list[Line]:
    """The graders of tasks that judge by text alone."""
    return [_told(name, _wrong_verdicts(make()), len(make().wrong) + 2) for name, make in GRADERS.items()]


def verifier_lines() -> list[Line]:
    """Every registered verifier by its own canaries, in its own processes."""
    from slipstream.envs.verifiers.registry import VERIFIERS  # here, so that one whose packages are broken is a finding

    return [line for name, verifier in VERIFIERS.items() for line in examined(PART, name, partial(_judged, verifier))]


def _judged(verifier: Verifier) -> list[Line]:
    with verifier.open(1) as judge:
        failures = lasting_failures(verifier, judge)
    return [_told(verifier.name, failures, len(verifier.canaries()))]


def _wrong_verdicts(graded: Graded) -> list[str]:
    """A sentence for each text that is judged otherwise than it must be."""
    wanted = {graded.right: True, **dict.fromkeys((*graded.wrong, ""), False)}
    verdicts = {text: graded.grade(text) for text in wanted}
    return [
        f"{text!r} must be {'right' if wanted[text] else 'wrong'}, got {found.kind} ({found.detail})"
        for text, found in verdicts.items()
        if (found.reward == 1.0) != wanted[text]
    ]


def _told(name: str, failures: list[str], canaries: int) -> Line:
    if failures:
        return Line(part=PART, name=name, grade=Grade.FAILED, detail="; ".join(failures), fix=_FIX)
    return Line(part=PART, name=name, grade=Grade.OK, detail=f"{canaries} canaries judged as they must be")
