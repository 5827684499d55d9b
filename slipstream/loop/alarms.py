"""Alarms of a run's scores: a fall that lasts, and a rise that is too good to be true. Pure; the recorder feeds it what it writes."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BELOW = 2.0  # standard errors of the difference to the peak
LASTING = 3  # scores in a row; a single one is below two errors every twentieth time
HIGH, LOW, STEPS = 0.95, 0.5, 5  # from below LOW to above HIGH in so few steps: skill does not rise like that, a leak does

WINDOW = 10  # steps of training that make one score to look for drift in


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A mean of rewards or of right answers at a step."""

    step: int
    value: float
    error: float  # standard error of the mean


Alarm = Callable[[Sequence[Score]], str | None]


def share_right(step: int, value: float, answers: int) -> Score:
    """The score of a share of so many answers; the error is that of one more right and one more wrong one, so it is never 0."""
    near = (value * answers + 1) / (answers + 2)
    return Score(step=step, value=value, error=math.sqrt(near * (1 - near) / (answers + 2)))


def windowed(scores: Sequence[Score], length: int = WINDOW) -> list[Score]:
    """Means of complete windows of scores; the error is that of their own spread, which also knows that prompts differ."""
    found: list[Score] = []
    for start in range(0, len(scores) - length + 1, length):
        values = [score.value for score in scores[start : start + length]]
        error = max(statistics.stdev(values), 0.01) / math.sqrt(length)
        found.append(Score(step=scores[start + length - 1].step, value=statistics.mean(values), error=error))
    return found


def raised(what: str, scores: Sequence[Score], alarms: Sequence[Alarm] = ()) -> list[str]:
    """The alarms (default: all) that the newest of the scores raises, as sentences; none for what the one before had raised already."""
    found: list[str] = []
    for alarm in alarms or (drift, too_good):
        sentence = alarm(scores)
        if sentence and not alarm(scores[:-1]):
            found.append(f"{what} {sentence}")
    return found


def drift(scores: Sequence[Score]) -> str | None:
    """Each of the last few scores is clearly below the best one before them."""
    before, last = scores[:-LASTING], scores[-LASTING:]
    if not before:
        return None
    peak = max(before, key=lambda score: score.value)
    if any(peak.value - score.value <= BELOW * math.hypot(peak.error, score.error) for score in last):
        return None
    values = ", ".join(f"{score.value:.3f}" for score in last)
    return f"drifts: {values} at steps {last[0].step} to {last[-1].step}, after {peak.value:.3f} at step {peak.step}"


def too_good(scores: Sequence[Score]) -> str | None:
    """The newest score is near 1, and a few steps ago one was not even half way. Check the verifier and the data for a leak."""
    if not scores or not HIGH < scores[-1].value <= 1:
        return None
    near = [score for score in scores[:-1] if scores[-1].step - score.step <= STEPS and score.value < LOW]
    if not near:
        return None
    before, now = near[-1], scores[-1]
    return f"is too good: from {before.value:.3f} at step {before.step} to {now.value:.3f} at step {now.step}; look for a leak"
