"""A grader's orders: replies that it takes from the coordinator and hands verdicts in for. Called by `processes.grader`.

A thread takes what there is room for. Once the grader's lease has ended all orders are somebody else's, and what it makes of them is
thrown away: the verdict of a process that was frozen may be a timeout that is none.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from slipstream.core.errors import StaleEpoch
from slipstream.core.records import Outcome
from slipstream.runtime.coordinator.verdict_messages import AT_ONCE, Order, Taken
from slipstream.runtime.join.caller import Ending
from slipstream.runtime.join.membership import Seat
from slipstream.runtime.worker import Worker

POLL_S = 20.0
PAUSE_S = 0.2  # before it looks again, while the grader has to join anew
FEWEST, MOST = 8, 256  # orders held at a time
AHEAD_S = 0.5  # of work in hand: so much hides the way to the coordinator, and more would be lost with the grader


class Orders:
    """Thread-safe. `on_orders` is called in the thread that takes them; `over` is set when the run is."""

    def __init__(self, seat: Seat, on_orders: Callable[[Sequence[Order], int], None], on_end: Callable[[], None]) -> None:
        """`on_orders` gets orders and the number of their lease: `hand_in` takes verdicts of the present one only."""
        self._seat, self._on_orders = seat, on_orders
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._lease = 0
        self._limit = FEWEST
        self._rate, self._counted_s = 0.0, time.monotonic()  # verdicts a second, while there were orders
        self._ending = threading.Event()
        self.over = threading.Event()
        self._worker = Worker("orders", self._run, on_end)

    @property
    def held(self) -> int:
        """Orders without a verdict."""
        return len(self._held)

    def start(self) -> None:
        self._worker.start()

    def check(self) -> None:
        """Raise what the thread died of."""
        self._worker.check()

    def hand_in(self, lease: int, verdicts: Mapping[str, Outcome]) -> int:
        """Says how many of them counted: those under another lease do not. Raises StaleEpoch when this one has ended."""
        with self._changed:
            mine = {name: outcome for name, outcome in verdicts.items() if lease == self._lease and name in self._held}
        if not mine:
            return 0
        self._seat.call("hand_in", {"verdicts": [{"name": name, "outcome": asdict(outcome)} for name, outcome in mine.items()]})
        with self._changed:
            self._held -= mine.keys()
            self._pace(len(mine))
            self._changed.notify_all()
        return len(mine)

    def let_go(self) -> None:
        """All orders are somebody else's."""
        with self._changed:
            self._held.clear()
            self._lease += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Take no more."""
        self._ending.set()
        with self._changed:
            self._changed.notify_all()

    def give_back(self, patience_s: float) -> None:
        """What has no verdict, so that another grader has it at once."""
        self._seat.call("take", {"room": 0, "holding": []}, patience_s=patience_s)

    def _pace(self, verdicts: int) -> None:
        now_s = time.monotonic()
        rate = verdicts / max(1e-3, now_s - self._counted_s)
        self._counted_s = now_s
        self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate
        self._limit = max(FEWEST, min(MOST, int(self._rate * AHEAD_S)))

    def _room(self) -> int:
        return max(0, min(AT_ONCE, self._limit - len(self._held)))

    def _run(self) -> None:
        while not self._ending.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._ending.is_set() or self._room() > 0)
                room, holding, lease = self._room(), sorted(self._held), self._lease
            if self._ending.is_set():
                return
            wait_s = min(POLL_S, self._seat.joined.lease_s)
            try:
                answer = self._seat.call("take", {"room": room, "holding": holding, "wait_s": wait_s}, wait_s=wait_s)
            except StaleEpoch:
                self._ending.wait(PAUSE_S)
                continue
            except Ending:
                return
            if answer.status != 204:
                self._receive(Taken.model_validate_json(answer.body), lease)

    def _receive(self, taken: Taken, lease: int) -> None:
        with self._changed:
            if lease != self._lease:
                return  # of a lease that has ended meanwhile: the coordinator has given them to others
            if not self._held:
                self._counted_s = time.monotonic()
            new = [order for order in taken.orders if order.name not in self._held]  # a coordinator started anew gives some twice
            self._held.update(order.name for order in new)
        if new:
            self._on_orders(new, lease)
        if taken.done:
            self.over.set()
            self.end()
