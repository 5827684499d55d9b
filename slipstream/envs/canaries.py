"""Canaries of what judges by text alone: a right answer must be rewarded, a wrong or an empty one must not. Pure.

Verifiers with processes of their own have canaries of their own (`envs.verifiers`). Called at the start of runs and graders, and by
`doctor`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from slipstream.core.records import Outcome
from slipstream.envs.countdown import grade_countdown
from slipstream.envs.graders import grade_exact, grade_final_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """A grader, and what it must say to some texts."""

    grade: Callable[[str], Outcome]
    right: str
    wrong: tuple[str, ...]  # the empty one is always among them

    @property
    def count(self) -> int:
        return len({self.right, *self.wrong, ""})

    def failed(self) -> list[str]:
        """A sentence for each text that is judged otherwise than it must be."""
        wanted = {self.right: True, **dict.fromkeys((*self.wrong, ""), False)}
        verdicts = {text: self.grade(text) for text in wanted}
        return [
            f"{text!r} must be {'right' if wanted[text] else 'wrong'}, got {found.kind} ({found.detail})"
            for text, found in verdicts.items()
            if (found.reward == 1.0) != wanted[text]
        ]


TEXT_GRADERS: Mapping[str, Canaries] = {
    "final_number": Canaries(
        grade=partial(grade_final_number, Fraction(42)), right="6 x 7\n#### 42", wrong=("42 or 43", "####", "#### -42")
    ),
    "exact": Canaries(grade=partial(grade_exact, "Paris"), right=" Paris\n", wrong=("paris", "Paris.", "Rome")),
    "countdown": Canaries(
        grade=partial(grade_countdown, (3, 7, 25), 46),
        right="<answer>(25 - 7) * 3 - 8 + 0</answer>\n<answer>25 + 7 * 3</answer>",
        wrong=(
            "<answer>46</answer>",
            "<answer>25 + 7 * 3 = 47</answer>",
            "<answer>25 + 21</answer>",
            "<answer>25 + 7 * 3 + 3 - 3</answer>",
        ),
    ),
}
"""The canaries of the graders of that name."""


def after_mark(grade: Callable[[str], Outcome], answer: str) -> Canaries:
    """Of tasks whose answers are a number after a `#`."""
    return Canaries(grade=grade, right=f"#{answer}", wrong=(f"#{answer}0", answer, f"#{answer} ", "#-1"))
