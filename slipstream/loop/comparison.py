"""Two evaluations of the same problems, compared problem by problem. Pure; called by `slipstream eval --compare`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.errors import UsageError
from slipstream.core.records import Tally
from slipstream.loop.eval_format import Format, format_differences
from slipstream.loop.intervals import paired_interval
from slipstream.loop.pass_at_k import problem_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What comparing needs of an evaluation."""

    task: str
    format: Format
    problems_hash: str
    drawn: int  # answers a problem
    k: tuple[int, ...]
    tallies: tuple[Tally, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The second evaluation's pass@k less the first one's, over the problems that both could judge."""

    k: int
    first: float
    second: float
    value: float
    ci: tuple[float, float]  # 95 %, paired
    problems: int
    better: int  # problems with a higher score in the second
    worse: int


def compare(one: Scored, other: Scored) -> list[Difference]:
    """A difference for each k that both have. Raises UsageError, with everything that differs, when they do not compare."""
    problems = _problems(one, other)
    if problems:
        raise UsageError("\n".join(["these evaluations do not compare:", *(f"  {problem}" for problem in problems)]))
    common = sorted(set(one.k) & set(other.k))
    return [_difference(one.tallies, other.tallies, k) for k in common]


def _problems(one: Scored, other: Scored) -> list[str]:
    found = [f"task: {one.task!r} against {other.task!r}"] if one.task != other.task else []
    found += format_differences(one.format, other.format)
    if one.problems_hash != other.problems_hash:
        found.append(_of_problem_sets({tally.id for tally in one.tallies}, {tally.id for tally in other.tallies}))
    if one.drawn != other.drawn:
        found.append(f"n: {one.drawn} against {other.drawn} answers a problem")
    return found


def _of_problem_sets(one: set[str], other: set[str]) -> str:
    if one == other:
        return "problems: the same ids with other questions or answers"
    return f"problems: {len(one - other)} are only in the first and {len(other - one)} only in the second, {len(one & other)} in both"


def _difference(one: Sequence[Tally], other: Sequence[Tally], k: int) -> Difference:
    first, second = problem_scores(one, k), problem_scores(other, k)
    shared = [id for id in first if id in second]
    if not shared:
        raise UsageError(f"pass@{k}: no problem has {k} judged answers in both evaluations")
    pairs = np.array([(first[id], second[id]) for id in shared])
    differences = pairs[:, 1] - pairs[:, 0]
    return Difference(
        k=k,
        first=float(pairs[:, 0].mean()),
        second=float(pairs[:, 1].mean()),
        value=float(differences.mean()),
        ci=paired_interval(differences),
        problems=len(shared),
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
    )
