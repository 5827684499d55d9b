"""A thread that hears the coordinator's news and passes them on: published versions to the store, changes to whoever waits.

Called by `runtime.processes`.
"""

import threading
from collections.abc import Callable, Sequence

from slipstream.core.errors import StaleEpoch
from slipstream.runtime.coordinator.messages import News
from slipstream.runtime.join.caller import Ending
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.worker import Worker

STALE_PAUSE_S = 0.2  # between two looks while the worker has to join anew


class NewsWatch:
    """`on_news` is called in the thread, before waiters are woken."""

    def __init__(self, ledger: RemoteLedger, on_news: Callable[[News], None]) -> None:
        self._ledger, self._on_news = ledger, on_news
        self._ending = threading.Event()
        self._worker = Worker("news", self._run, ledger.wake)

    def start(self) -> None:
        self._worker.start()

    def check(self) -> None:
        """Raise what the thread died of."""
        self._worker.check()

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        seen: Sequence[str] = ()
        while not self._ending.is_set():
            try:
                news = self._ledger.watch(seen)
            except StaleEpoch:
                self._ending.wait(STALE_PAUSE_S)
                continue
            except Ending:
                return
            seen = news.seen if news is not None else ()  # after a quiet while all is told again: what could not be fetched is tried again
            if news is not None:
                self._on_news(news)
                self._ledger.wake()
