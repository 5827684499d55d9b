"""From a data file to a better one: what goes, why, in which order. Pure; files are the business of `cli.data`.

Order: rows that cannot be used, length, duplicates, overlap with evaluation sets, pass rate. A row has one reason, the first.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.envs.catalog.entry import Item
from slipstream.envs.curation.duplicates import SIMILARITY, find_duplicates
from slipstream.envs.curation.leaks import WORDS, find_leaks
from slipstream.envs.curation.pass_rates import PassRate
from slipstream.envs.datasets import SkippedLine


class Reason(StrEnum):
    """Why a row is dropped."""

    UNUSABLE = "unusable"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    LEAK = "leak"
    TOO_HARD = "too_hard"
    TOO_EASY = "too_easy"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """One row that goes."""

    id: str
    line: int
    reason: Reason
    detail: str  # for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """An evaluation set whose questions must not be trained on."""

    name: str
    ids: Sequence[str]
    questions: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is asked of rows. The defaults drop duplicates only."""

    least: int = 0  # units of `size`
    most: int | None = None
    unit: str = "characters"
    similarity: float = SIMILARITY  # of near duplicates; 1: the same text only
    words: int = WORDS  # in a row, shared with an evaluation set
    min_pass: float | None = None  # None: rows that nobody got right go
    max_pass: float | None = None  # None: rows that everybody got right go
    rates: Mapping[str, PassRate] | None = None


def curate(
    items: Sequence[Item], skipped: Sequence[SkippedLine], rules: Rules, unseen: Sequence[Unseen], size: Callable[[str], int]
) -> tuple[list[Item], list[Dropped]]:
    """The items that stay, in order, and all that go, with `skipped` among them. `size` measures a question in the rules' unit."""
    gone = [Dropped(id=skip.id, line=skip.line, reason=Reason.UNUSABLE, detail=skip.reason) for skip in skipped]
    steps: list[Callable[[Sequence[Item]], dict[int, tuple[Reason, str]]]] = [
        lambda left: _lengths(left, rules, size),
        lambda left: _duplicates(left, rules),
        *(lambda left, one=one: _leaks(left, rules, one) for one in unseen),
        lambda left: _pass_rates(left, rules),
    ]
    left = list(items)
    for step in steps:
        found = step(left)
        gone += [Dropped(id=left[at].id, line=left[at].row.line, reason=why, detail=detail) for at, (why, detail) in found.items()]
        left = [item for place, item in enumerate(left) if place not in found]
    return left, sorted(gone, key=lambda dropped: dropped.line)


def counts(dropped: Sequence[Dropped]) -> dict[str, int]:
    """How many rows went for each reason, in the order of the steps."""
    found = Counter(row.reason for row in dropped)
    return {str(reason): found[reason] for reason in Reason if found[reason]}


def _lengths(items: Sequence[Item], rules: Rules, size: Callable[[str], int]) -> dict[int, tuple[Reason, str]]:
    found: dict[int, tuple[Reason, str]] = {}
    if rules.least == 0 and rules.most is None:
        return found
    for place, item in enumerate(items):
        length = size(item.meaning.question)
        if length < rules.least:
            found[place] = (Reason.TOO_SHORT, f"{length} {rules.unit}")
        elif rules.most is not None and length > rules.most:
            found[place] = (Reason.TOO_LONG, f"{length} {rules.unit}")
    return found


def _duplicates(items: Sequence[Item], rules: Rules) -> dict[int, tuple[Reason, str]]:
    found = find_duplicates([item.meaning.question for item in items], rules.similarity)
    return {
        place: (Reason.DUPLICATE, f"as {items[copy.of].id}")
        if copy.similarity == 1.0
        else (Reason.NEAR_DUPLICATE, f"{copy.similarity:.2f} like {items[copy.of].id}")
        for place, copy in found.items()
    }


def _leaks(items: Sequence[Item], rules: Rules, unseen: Unseen) -> dict[int, tuple[Reason, str]]:
    found = find_leaks([item.meaning.question for item in items], unseen.questions, rules.words)
    return {
        place: (Reason.LEAK, f"{unseen.name} {unseen.ids[leak.against]}: {leak.words or 'the same text'}") for place, leak in found.items()
    }


def _pass_rates(items: Sequence[Item], rules: Rules) -> dict[int, tuple[Reason, str]]:
    found: dict[int, tuple[Reason, str]] = {}
    if rules.rates is None:
        return found
    for place, item in enumerate(items):
        measured = rules.rates.get(item.id)
        if measured is None:
            found[place] = (Reason.UNMEASURED, "not in the file of pass rates")
            continue
        told = f"{measured.right:g} of {measured.samples}"
        if measured.rate < rules.min_pass if rules.min_pass is not None else measured.right == 0:
            found[place] = (Reason.TOO_HARD, told)
        elif measured.rate > rules.max_pass if rules.max_pass is not None else measured.rate == 1:
            found[place] = (Reason.TOO_EASY, told)
    return found
