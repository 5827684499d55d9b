"""Counts how graders end, and ends a run whose grader never worked. One object a run, called from any thread."""

import threading
from collections import Counter

from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind

FIRST = 20


class FirstFailures:
    """Lets outcomes through. Raises RunFailed when the first twenty were all failures of the grader itself."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self.counts: Counter[OutcomeKind] = Counter()

    def passed(self, outcome: Outcome) -> Outcome:
        with self._lock:
            self.counts[outcome.kind] += 1
            failed = self.counts[OutcomeKind.INFRASTRUCTURE]
            never_worked = failed >= FIRST and failed == self.counts.total()
        if never_worked:
            raise RunFailed(f"{self._what} failed on each of its first {failed} answers; the last: {outcome.detail}")
        return outcome
