"""What the samplers say of themselves with their calls. Lost with the process, and said again. Kept by `coordinator.desk`."""

from dataclasses import dataclass

from slipstream.ledger.ledger import Ledger
from slipstream.runtime.coordinator.messages import Counted, Counters


@dataclass(slots=True, kw_only=True)
class Told:
    """By one worker, in its present epoch."""

    epoch: int
    tokens: int = 0
    wait_s: float = 0.0
    loaded: int = -1  # version
    joined_s: float = 0.0  # run clock; 0: before the coordinator started
    ratio: float | None = None  # mean importance ratio, as it was last judged


class Samplers:
    """The caller serialises access. `counters`: what all have done in this term, those that have gone included."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: dict[str, Told] = {}
        self.counters = Counters()

    def begin(self, worker: str, epoch: int, now_s: float) -> None:
        """It has joined."""
        self._told[worker] = Told(epoch=epoch, joined_s=now_s)

    def here(self) -> dict[str, Told]:
        """What the samplers that are here have said."""
        workers = self._ledger.state.workers
        return {name: self.of(name, entry.epoch) for name, entry in workers.items() if entry.here and entry.kind == "sampler"}

    def of(self, worker: str, epoch: int) -> Told:
        told = self._told.get(worker)
        if told is None or told.epoch != epoch:
            told = self._told[worker] = Told(epoch=epoch)
        return told

    def count(self, message: Counted) -> Told:
        """What a sampler says of itself, added to what all have done: samplers come and go."""
        told, samplers = self.of(message.worker, message.epoch), max(1, len(self.here()))
        drawn, waited = max(0, message.tokens - told.tokens), max(0.0, message.wait_s - told.wait_s)
        self.counters = Counters(tokens=self.counters.tokens + drawn, wait_s=self.counters.wait_s + waited / samplers)
        told.tokens, told.wait_s = told.tokens + drawn, told.wait_s + waited
        return told
