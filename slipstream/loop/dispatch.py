"""A sampler's turn: take the weights it should have, claim what admission allows, advance, hand in the episodes that ended.

`turn` never blocks; it says whether there was anything to do, and its caller waits for the ledger to change (which whoever answers
turns has to do, too: `Ledger.wake`). Verdicts and environments take their time beside generation.

Each rollout carries the digest of the weights that drew its last token, as the store told it when they were loaded. The store of an
embedded run tells none, since nothing is copied or sent there, and hashing every version would cost as much as publishing it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.clock import Clock
from slipstream.core.ports import Agents, Environments, EpisodeKey, Ledger, Sampler, WeightStore
from slipstream.core.records import SampleRequest, Ticket
from slipstream.loop.agent_episodes import open_episodes
from slipstream.loop.collect import Collector, sample_seed
from slipstream.loop.episodes import Episode
from slipstream.loop.phases import Phases
from slipstream.telemetry.events import Events

PATIENCE_S = 5.0  # at a stop, with graders and environments that say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How every training sample is drawn."""

    seed: int  # the run's
    group_size: int
    max_new_tokens: int
    temperature: float
    pinned: bool  # an episode is drawn wholly by one version, so weights change only between episodes


class Dispatch:
    """One sampler at work. Called by one thread."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        environments: Environments | Agents,
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
        self._digests: dict[int, str] = {}  # of the versions loaded so far, where the store knows them
        self.episodes = open_episodes(sampler, environments, collector.codec)

    @property
    def tokens(self) -> int:
        """Tokens drawn so far."""
        return self.episodes.tokens

    def turn(self) -> bool:
        """One round; False when there was nothing to do but wait."""
        ended = self.episodes.take()
        self._load()
        self._claim()
        busy = self.episodes.busy
        self._phases.enter("generate" if busy else "wait")
        if busy:
            ended += self.episodes.step()
        self._hand_in(ended)
        return busy or bool(ended)

    def unfinished(self) -> list[tuple[int, EpisodeKey]]:
        """Ticket index and key of samples that are still in their first turn."""
        return [(self._tickets[key[0]][0].index, key) for key in self.episodes.first_turns]

    def close(self, *, drain: bool) -> None:
        """The end of this sampler's work. `drain`: what it has drawn is judged and handed in first, as far as verdicts keep coming."""
        if drain:
            self._hand_in(self.episodes.drain(PATIENCE_S))
        self.episodes.close()

    def _hand_in(self, ended: Sequence[Episode]) -> None:
        if ended:
            self._ledger.submit([self._collector.rollout(*self._closing(episode.sample.key[0], episode)) for episode in ended])

    def _load(self) -> None:
        """In flight: always the newest, at once. Pinned: the version that the next ticket wants, between episodes."""
        newest = self._store.newest()
        if newest < 0:
            return
        if self._rules.pinned:
            wanted = None if self.episodes.drawing else self._ledger.wanted_version(newest)
        else:
            wanted = newest
        if wanted is not None and wanted != self._sampler.version:
            self._phases.enter("load")
            weights = self._store.get(wanted)
            self._sampler.load(weights)
            self._digests[wanted] = weights.digest
            self._events.emit(self._sampler.id, "load", version=wanted)

    def _claim(self) -> None:
        """As many tickets as keep the slots full; the last one's surplus samples wait in the sampler, or for an agent."""
        free = min(self._sampler.free_slots(), self.episodes.places)
        if free < 1 or self._sampler.version < 0:
            return
        now = self._clock.now_s()
        for ticket in self._ledger.claim(self._sampler.id, -(-free // self._rules.group_size), self._sampler.version):
            self._tickets[ticket.id] = (ticket, now)
            self._missing[ticket.id] = len(ticket.samples)
            for sample in ticket.samples:
                self.episodes.begin(ticket.prompt, self._request(ticket, sample))

    def _request(self, ticket: Ticket, sample: int) -> SampleRequest:
        return SampleRequest(
            key=(ticket.id, sample),
            prompt_ids=ticket.prompt.token_ids,
            seed=sample_seed(self._rules.seed, ticket, sample),
            max_new_tokens=self._rules.max_new_tokens,
            temperature=self._rules.temperature,
            stop_ids=self._collector.codec.stop_ids,
            drawn=next((partial for partial in ticket.partials if partial.sample == sample), None),
        )

    def _closing(self, ticket_id: str, episode: Episode) -> tuple[Ticket, Episode, float, str]:
        """Arguments for the collector; forgets the ticket with its last sample."""
        ticket, claimed_s = self._tickets[ticket_id]
        self._missing[ticket_id] -= 1
        if not self._missing[ticket_id]:
            del self._tickets[ticket_id], self._missing[ticket_id]
        return ticket, episode, claimed_s, self._digests.get(int(episode.sample.versions[-1]), "")
