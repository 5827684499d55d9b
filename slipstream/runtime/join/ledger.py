"""The ledger as seen from another process. Implements `core.ports.Ledger`, and the waiting that the embedded ledger also offers.

A sampler's lease may end at any call, which then raises StaleEpoch: what it runs is somebody else's. A learner holds nothing that
it could lose by that, so its calls join anew, unless the run went on without it. Called by `runtime.processes`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import RunFailed, StaleEpoch
from slipstream.core.records import Batch, Partial, Receipt, Rollout, RolloutRatio, Ticket
from slipstream.runtime.coordinator.messages import Canary, Counters, Joined, News, frame, partial_to_wire, read_batch, ticket_from_json
from slipstream.runtime.join.caller import Answer
from slipstream.runtime.join.membership import Head, Seat

POLL_S = 20.0  # a long poll for news
EPOCHS = 10  # that one call of a learner may go through
BATCH_POLL_S = 2.0  # a long poll for a batch: the learner looks at its stop flag in between


class RemoteLedger:
    """Thread-safe. `counters`: what a sampler says of itself with its calls. `has`: whether it has the weights of a version."""

    def __init__(
        self, seat: Seat, clock: Clock, counters: Callable[[], Head] = dict, has: Callable[[int], bool] = lambda version: True
    ) -> None:
        self._seat, self._clock, self._counters, self._has = seat, clock, counters, has
        self._changed = threading.Condition()
        self._sequence = 0
        self._waited = False  # by asking for a batch
        self._holding: dict[int, set[int]] = {}  # samples still to hand in, by ticket index
        self._nothing: tuple[int, int] | None = None  # the sequence and the version at which there was nothing to claim
        self._ask_again_s = 0.0
        self._version = 0  # of this learner
        self._counted = (0, Counters())  # the coordinator's term and what it had counted then
        self.drawn = Counters()  # by all samplers, as of the last commit

    @property
    def sequence(self) -> int:
        """Grows with all news."""
        return self._sequence

    def wait_change(self, seen: int, timeout_s: float) -> bool:
        """Sleep until `sequence` is no longer `seen`, at most `timeout_s`; False when nothing changed.

        Where a batch was asked for in vain just now, that was the sleep.
        """
        if self._waited:
            self._waited = False
            return self._sequence != seen
        with self._changed:
            return self._changed.wait_for(lambda: self._sequence != seen, timeout_s)

    def wake(self) -> None:
        """Let everyone who waits look again."""
        with self._changed:
            self._sequence += 1
            self._changed.notify_all()

    def wanted_version(self, newest: int) -> int | None:
        """As the ledger's; None too while the wanted version could not be fetched."""
        wanted = self._seat.call("wanted", {"newest": newest}).json()["version"]
        return wanted if wanted is not None and self._has(wanted) else None

    def claim(self, worker: str, tickets: int, loaded_version: int) -> list[Ticket]:
        """As the ledger's, for this worker whatever it is called. Where there was nothing it asks again after news, or in a moment."""
        at = (self._sequence, loaded_version)
        if at == self._nothing and self._clock.now_s() < self._ask_again_s:
            return []
        fields = {"tickets": tickets, "loaded_version": loaded_version, "holding": sorted(self._holding)}
        answer = self._seat.call("claim", {**fields, **self._counters()})
        if answer.status == 204:
            self._nothing, self._ask_again_s = at, self._clock.now_s() + (answer.retry_after_s or 0.0)
            return []
        claimed = [ticket_from_json(ticket) for ticket in answer.json()["tickets"]]
        self._holding.update({ticket.index: set(ticket.samples) for ticket in claimed})
        return claimed

    def submit(self, rollouts: Sequence[Rollout]) -> list[Receipt]:
        body = frame({**self._seat.head, **self._counters()}, [rollout_to_bytes(rollout) for rollout in rollouts])
        receipts = [Receipt(receipt) for receipt in self._seat.caller.post("submit", body).json()["receipts"]]
        for rollout in rollouts:
            left = self._holding.get(rollout.ticket_index, set())
            left.discard(rollout.sample_index)
            if not left:
                self._holding.pop(rollout.ticket_index, None)
        return receipts

    def let_go(self) -> None:
        """The tickets are somebody else's."""
        self._holding.clear()
        self._nothing = None

    def save_progress(self, partials: Sequence[Partial], *, patience_s: float) -> None:
        """What this worker has drawn of samples that it will not end."""
        wire = [partial_to_wire(partial).model_dump() for partial in partials]
        self._seat.call("progress", {"partials": wire}, patience_s=patience_s)

    def watch(self, seen: Sequence[str]) -> News | None:
        """What is new since the state called `seen`; None when nothing came up for a while."""
        wait_s = min(POLL_S, self._seat.joined.lease_s)
        answer = self._seat.call("watch", {"seen": list(seen), "wait_s": wait_s}, wait_s=wait_s)
        return None if answer.status == 204 else News.model_validate_json(answer.body)

    def begin(self, version: int) -> int:
        """This learner starts from the checkpoint of `version`; the run's lineage from now on."""
        self._version = version
        try:
            answer = self._seat.call("begin", {"version": version})
        except StaleEpoch:  # its own doing, where the answer to a first call got lost
            self._seat.rejoin(self._seat.joined.epoch)
            answer = self._seat.call("begin", {"version": version})
        self._seat.joined = Joined.model_validate_json(answer.body)
        return self._seat.joined.lineage

    def batch(self, step: int) -> Batch | None:
        """Waits a little for the batch."""
        answer = self._as_learner("batch", {"step": step, "wait_s": BATCH_POLL_S}, wait_s=BATCH_POLL_S)
        if answer.status == 204:
            self._sequence, self._waited = answer.sequence, True
            return None
        return read_batch(answer.body)

    def publish(
        self, lineage: int, version: int, digest: str, manifest: dict[str, Any], sources: Sequence[str], canary: Canary | None = None
    ) -> None:
        """Announce a version that can be fetched, with what the learner computes of the canary."""
        fields = {"lineage": lineage, "version": version, "digest": digest, "manifest": manifest, "sources": list(sources)}
        self._as_learner("publish", {**fields, "canary": canary and canary.model_dump()})

    def prove(self, version: int, digest: str, canary: Canary) -> None:
        """What this sampler computes of the canary with the version that it has loaded. Raises StaleEpoch."""
        self._seat.call("prove", {"version": version, "digest": digest, "canary": canary.model_dump()})

    def commit(self, step: int) -> None:
        counted = Counters.model_validate_json(self._as_learner("commit", {"step": step}).body)
        self._version = step + 1
        term, before = self._counted
        if term != self._seat.caller.term:
            before = Counters()  # a coordinator that was started anew counts from nothing
        self._counted = (self._seat.caller.term, counted)
        self.drawn = Counters(
            tokens=self.drawn.tokens + max(0, counted.tokens - before.tokens),
            wait_s=self.drawn.wait_s + max(0.0, counted.wait_s - before.wait_s),
        )

    def ratios(self, found: Sequence[RolloutRatio]) -> None:
        """What an audit of this learner found of the samplers."""
        if found:
            self._as_learner("ratios", {"ratios": [asdict(one) for one in found]})

    def sync(self) -> None:
        self._as_learner("sync")

    def forget_before(self, step: int) -> None:
        self._as_learner("forget", {"step": step})

    def _as_learner(self, name: str, fields: Head | None = None, *, wait_s: float = 0.0) -> Answer:
        """The call, again in a new epoch where this one has ended. Raises RunFailed when the run went on without this learner."""
        for _ in range(EPOCHS):  # one may end while the coordinator is away once more
            before = self._seat.joined
            try:
                return self._seat.call(name, fields, wait_s=wait_s)
            except StaleEpoch:
                joined = self._seat.rejoin(before.epoch)
                mine = (self._version, self._version + 1) if name == "commit" else (self._version,)
                if joined.lineage != before.lineage or joined.version not in mine:
                    raise RunFailed(
                        f"while {before.worker} was away at version {self._version} of lineage {before.lineage}, the run went on to "
                        f"version {joined.version} of lineage {joined.lineage}; start the learner again"
                    ) from None
        raise RunFailed(f"the lease of {self._seat.joined.worker} has ended {EPOCHS} times in a row before {name} was answered")
