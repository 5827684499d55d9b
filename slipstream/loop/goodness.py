"""Do counts follow given probabilities? A likelihood-ratio test whose false-alarm bound holds for any number of draws. Pure.

With n draws over k cells, n times the relative entropy of the observed shares to the probabilities has a moment generating
function of at most (1 - t)^-(k - 1) (Agrawal 2020, "Finite-sample concentration of the multinomial in relative entropy").
Sums over independent experiments add their k - 1, and Chernoff's bound of that function is what `threshold` inverts. The
usual chi-square quantile is 1.5 to 2 times smaller, but it is an asymptote: far out, with few draws a cell, it is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

IMPOSSIBLE = 1e-7  # least probability given to the rest, so that rounding makes nothing impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Independent experiments, added up."""

    evidence: float  # draws times relative entropy, nats; half of the likelihood-ratio chi-square
    freedom: int  # cells less one, summed
    draws: int
    if_greedy: float  # the evidence there would be if every draw were the likeliest cell


def fit(counts: Sequence[int], probabilities: Sequence[float]) -> Fit:
    """Counts of the cells and, last, of everything else; `probabilities` are those of the cells alone."""
    left = max(1.0 - sum(probabilities), IMPOSSIBLE)
    total = sum(probabilities) + left
    shares = [probability / total for probability in (*probabilities, left)]
    draws = sum(counts)
    evidence = sum(count * _log_ratio(count / draws, share) for count, share in zip(counts, shares, strict=True) if count)
    return Fit(evidence=evidence, freedom=len(probabilities), draws=draws, if_greedy=-draws * log(max(shares)))


def together(fits: Sequence[Fit]) -> Fit:
    """The experiments as one."""
    return Fit(
        evidence=sum(one.evidence for one in fits),
        freedom=sum(one.freedom for one in fits),
        draws=sum(one.draws for one in fits),
        if_greedy=sum(one.if_greedy for one in fits),
    )


def threshold(freedom: int, false_alarm: float) -> float:
    """The evidence x that is reached with probability at most `false_alarm`: e^-x (e x / freedom)^freedom equals it."""
    if freedom == 0:
        return log(1 / false_alarm)
    low, high = float(freedom), freedom + 20.0 * (freedom + log(1 / false_alarm))
    while high - low > 1e-6:
        middle = (low + high) / 2
        exceeded = middle - freedom * (1 + log(middle / freedom)) >= log(1 / false_alarm)
        low, high = (low, middle) if exceeded else (middle, high)
    return high


def _log_ratio(observed: float, expected: float) -> float:
    return log(observed / expected) if expected > 0 else inf
