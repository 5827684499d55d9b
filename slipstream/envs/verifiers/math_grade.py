"""The verdict on a response to a question with a known answer. Pure, bounded in time by what it refuses; run in a `pool`.

Worked example: grade("1/2", "so \\boxed{0.5}") is right, read from a box.
"""

from dataclasses import dataclass
from typing import Any

from slipstream.envs.verifiers.math_compare import same_text
from slipstream.envs.verifiers.math_extract import extract

MAX_ANSWER = 20_000  # characters; a longer one is compared sign by sign
SHOWN = 80  # characters of an answer in a detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the response gives the answer, and what was compared."""

    right: bool
    found: bool  # an answer could be found in the response
    form: str  # boxed, hash or plain; "" where none was found
    detail: str


def grade(gold: str, response: str) -> Verdict:
    """Judge a response. Never raises; a deadline is the caller's."""
    extracted = extract(response)
    if extracted is None:
        return Verdict(right=False, found=False, form="", detail="no answer in the response")
    right = _same(gold, extracted.text)
    return Verdict(right=right, found=True, form=extracted.form, detail=f"read {_shown(extracted.text)}, want {_shown(gold)}")


def grade_job(payload: dict[str, Any]) -> dict[str, Any]:
    """`grade` for a pool: {gold, response} to the verdict's fields."""
    verdict = grade(payload["gold"], payload["response"])
    return {"right": verdict.right, "found": verdict.found, "form": verdict.form, "detail": verdict.detail}


def _same(gold: str, answer: str) -> bool:
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return "".join(gold.split()) == "".join(answer.split())
    return same_text(gold, answer)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")
