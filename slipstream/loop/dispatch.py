"""A sampler's turn: take the weights it should have, claim what admission allows, advance, hand in what ended.

`turn` never blocks; it says whether there was anything to do, and its caller waits for the ledger to change.
"""

from dataclasses import dataclass

from slipstream.core.clock import Clock
from slipstream.core.ports import Ledger, Sampler, WeightStore
from slipstream.core.records import Sample, SampleRequest, Ticket
from slipstream.loop.collect import Collector, sample_seed
from slipstream.loop.phases import Phases
from slipstream.telemetry.events import Events


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How every training sample is drawn."""

    seed: int  # the run's
    group_size: int
    max_new_tokens: int
    temperature: float
    pinned: bool  # a sample is drawn wholly by one version, so weights change only between samples


class Dispatch:
    """One sampler at work. Called by one thread."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        ledger: Ledger,
        store: WeightStore,
        collector: Collector,
        rules: SamplingRules,
        phases: Phases,
        events: Events,
        clock: Clock,
    ) -> None:
        self._sampler, self._ledger, self._store, self._collector = sampler, ledger, store, collector
        self._rules, self._phases, self._events, self._clock = rules, phases, events, clock
        self._tickets: dict[str, tuple[Ticket, float]] = {}  # open here, with the time of their claim
        self._missing: dict[str, int] = {}  # samples of each still to come
        self.tokens = 0  # completion tokens drawn so far

    def turn(self) -> bool:
        """One round; False when there was nothing to do but wait."""
        self._load()
        self._claim()
        if not (self._sampler.running() or self._sampler.waiting()):
            self._phases.enter("wait")
            return False
        self._phases.enter("generate")
        samples = self._sampler.step()
        if samples:
            self.tokens += sum(len(sample.completion_ids) for sample in samples)
            self._ledger.submit([self._collector.rollout(*self._closing(sample.key[0], sample)) for sample in samples])
        return True

    def _load(self) -> None:
        """In flight: always the newest, at once. Pinned: the version that the next ticket wants, between samples."""
        newest = self._store.newest()
        if newest < 0:
            return
        if self._rules.pinned:
            idle = not (self._sampler.running() or self._sampler.waiting())
            wanted = self._ledger.wanted_version(newest) if idle else None
        else:
            wanted = newest
        if wanted is not None and wanted != self._sampler.version:
            self._phases.enter("load")
            self._sampler.load(self._store.get(wanted))
            self._events.emit(self._sampler.id, "load", version=wanted)

    def _claim(self) -> None:
        """As many tickets as keep the slots full; the last one's surplus samples wait in the sampler."""
        free = self._sampler.free_slots()
        if free == 0 or self._sampler.version < 0:
            return
        now = self._clock.now_s()
        for ticket in self._ledger.claim(self._sampler.id, -(-free // self._rules.group_size), self._sampler.version):
            self._tickets[ticket.id] = (ticket, now)
            self._missing[ticket.id] = len(ticket.samples)
            for sample in ticket.samples:
                self._sampler.submit(self._request(ticket, sample))

    def _request(self, ticket: Ticket, sample: int) -> SampleRequest:
        return SampleRequest(
            key=(ticket.id, sample),
            prompt_ids=ticket.prompt.token_ids,
            seed=sample_seed(self._rules.seed, ticket, sample),
            max_new_tokens=self._rules.max_new_tokens,
            temperature=self._rules.temperature,
            stop_ids=self._collector.codec.stop_ids,
        )

    def _closing(self, ticket_id: str, sample: Sample) -> tuple[Ticket, Sample, float]:
        """Arguments for the collector; forgets the ticket with its last sample."""
        ticket, claimed_s = self._tickets[ticket_id]
        self._missing[ticket_id] -= 1
        if not self._missing[ticket_id]:
            del self._tickets[ticket_id], self._missing[ticket_id]
        return ticket, sample, claimed_s
