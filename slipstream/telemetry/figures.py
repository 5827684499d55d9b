"""Numbers as people read them: shares, counts, rates, times, and a line of small bars. Pure text; used by progress and summary.

Every function takes None (a figure that is absent) and gives a dash.
"""

from collections.abc import Sequence
from itertools import pairwise

ABSENT = "–"  # noqa: RUF001
_BARS = "▁▂▃▄▅▆▇█"


def decimal(value: float | None, places: int = 2) -> str:
    """0.6328 -> "0.63"."""
    return ABSENT if value is None else f"{value:.{places}f}"


def percent(value: float | None) -> str:
    """0.6328 -> "63 %"."""
    return ABSENT if value is None else f"{value * 100:.0f} %"


def count(value: float | None) -> str:
    """7826.7 -> "7,827"."""
    return ABSENT if value is None else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """75.2 -> "1:15", 3675 -> "1:01:15"."""
    if seconds is None:
        return ABSENT
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def interval(low: float, high: float) -> str:
    """(0.461, 0.583) -> "0.46 to 0.58"."""
    return f"{low:.2f} to {high:.2f}"


def bars(values: Sequence[float], width: int = 12) -> str:
    """All values so far as at most `width` small bars (means of equal stretches), between the least and the greatest of them."""
    count = min(width, len(values))
    edges = [place * len(values) // count for place in range(count + 1)] if count else [0]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)
