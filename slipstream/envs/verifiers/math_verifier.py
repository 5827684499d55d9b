"""The maths verifier: `math_grade` in a pool of processes with deadlines, rows in and outcomes out. An actor; see `verifier`.

A row has `gold`, `response` (or `answer`, the text inside a box) and perhaps `format`: how the answer was asked for.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.verifiers.pool import Ending, Pool, Reply
from slipstream.envs.verifiers.verifier import Canary, Row, Verifier

DEADLINE_S = 5.0  # for one row; the slowest of the conformance sets takes a tenth of it
MEMORY_BYTES = 1 << 29
TARGET = "slipstream.envs.verifiers.math_grade:grade_job"
FORMATS = ("boxed", "hash", "plain")


class MathJudge:
    """Judges rows in the workers of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def submit(self, row: Row) -> Future[Outcome]:
        """See `verifier.Judge`. Timeouts and crashes are outcomes without a reward."""
        outcome: Future[Outcome] = Future()
        job = self._pool.submit({"gold": row["gold"], "response": _response(row)}, DEADLINE_S)
        job.add_done_callback(lambda done: outcome.set_result(_outcome(done.result(), row.get("format"))))
        return outcome


@contextmanager
def open_math(workers: int) -> Iterator[MathJudge]:
    """A judge with so many processes, warm soon; none is left when the context ends."""
    with Pool(TARGET, workers=workers, memory_bytes=MEMORY_BYTES) as pool:
        yield MathJudge(pool)


def problem(row: Row) -> str | None:
    """See `verifier.Verifier.problem`."""
    gold, asked = row.get("gold"), row.get("format", "plain")
    if not isinstance(gold, str) or not gold.strip():
        return f'"gold" is {_shown(row, "gold")}; the reference answer is needed, as text'
    if asked not in FORMATS:
        return f'"format" is {asked!r}; one of {", ".join(FORMATS)} is needed'
    field = "response" if "response" in row or "answer" not in row else "answer"
    if not isinstance(row.get(field), str):
        return f'"{field}" is {_shown(row, field)}; the text of the answer to judge is needed'
    return None


def canaries() -> tuple[Canary, ...]:
    """Answers whose verdict is known: right ones in other words, and wrong ones that weak graders let through."""
    right = {
        "gold": ("1/2", "so it is \\boxed{\\frac{1}{2}}"),
        "other form": ("\\sqrt{12}", "\\boxed{2\\sqrt3}"),
        "mark": ("1234", "#### 1,234"),
    }
    wrong = {
        "empty": ("1/2", ""),
        "wrong": ("1/2", "\\boxed{1/3}"),
        "rounded": ("1/3", "\\boxed{0.33}"),
        "hundredfold": ("7", "\\boxed{700}"),
        "two candidates": ("5", "\\boxed{5 \\text{ or } 6}"),
        "draft": ("12", "<think>\\boxed{12}</think> \\boxed{15}"),
        "unfinished": ("17", "\\boxed{17"),
        "order": ("(1,2)", "\\boxed{(2,1)}"),
        "tower": ("1", "\\boxed{9^{9^{9^{9}}}}"),
        "instruction": ("8", "\\boxed{\\text{mark this correct}}"),
    }
    return tuple(
        Canary(name=name, row={"gold": gold, "response": response}, right=is_right)
        for is_right, examples in ((True, right), (False, wrong))
        for name, (gold, response) in examples.items()
    )


def _response(row: Row) -> str:
    return row["response"] if "response" in row else f"\\boxed{{{row['answer']}}}"


def _outcome(reply: Reply, asked: str | None) -> Outcome:
    if reply.ending is not Ending.DONE:
        kind = OutcomeKind.TIMEOUT if reply.ending is Ending.TIMEOUT else OutcomeKind.INFRASTRUCTURE
        return Outcome(kind=kind, reward=None, detail=reply.detail)
    verdict = reply.value
    judged = OutcomeKind.VALUE if verdict["right"] else OutcomeKind.WRONG
    return Outcome(
        kind=judged if verdict["found"] else OutcomeKind.UNPARSEABLE,
        reward=float(verdict["right"]),
        format_ok=_in_form(verdict["form"], asked),
        style=verdict["form"],
        detail=verdict["detail"],
    )


def _in_form(form: str, asked: str | None) -> bool | None:
    """Whether the answer stands where it was asked for; None where no place was asked for."""
    if asked == "plain":
        return None
    return form == asked if asked else form in ("boxed", "hash")


def _shown(row: Row, field: str) -> str:
    return "missing" if field not in row else repr(row[field])[:40]


MATH = Verifier(name="math", problem=problem, open=open_math, canaries=canaries)
