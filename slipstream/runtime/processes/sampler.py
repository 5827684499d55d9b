"""The process of `slipstream sampler`: joins by URL, fetches weights, draws what it may claim, hands it in, until the run is over.

SIGTERM is a notice that the machine goes: it claims no more, sends what it has drawn so far, and leaves. A lease that has ended means
that what it ran is somebody else's: it joins anew and begins again with nothing.
"""

import sys
import threading
from dataclasses import dataclass

import numpy as np

from slipstream.config.schema import RunConfig
from slipstream.core.clock import Clock
from slipstream.core.errors import StaleEpoch
from slipstream.core.ports import Agents, Environments
from slipstream.core.records import Partial, Progress, WeightVersion
from slipstream.core.rng import stream_seed
from slipstream.engine.engine import Engine
from slipstream.loop.dispatch import Dispatch
from slipstream.loop.phases import Phases
from slipstream.models.weight import Precision
from slipstream.runtime.assembly import build_engine, collector, longest, sampling_rules
from slipstream.runtime.coordinator.messages import Canary, News
from slipstream.runtime.coordinator.tls import client_context
from slipstream.runtime.devices import configure_jax
from slipstream.runtime.environments import open_environments
from slipstream.runtime.join.address import JoinSettings
from slipstream.runtime.join.grading import RemoteGrading
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.join.membership import Head
from slipstream.runtime.join.watch import NewsWatch
from slipstream.runtime.processes.canary import CanarySampler, canary
from slipstream.runtime.processes.manifests import manifest_from_json
from slipstream.runtime.processes.participant import FAREWELL_S, Participant
from slipstream.runtime.processes.sampler_metrics import Latest
from slipstream.runtime.shape import Shape, open_shape
from slipstream.runtime.stop import StopFlag
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.fetch import Fetcher, FetchRules
from slipstream.weights.remote_store import RemoteStore
from slipstream.weights.transports.opening import open_source

LOOK_S = 0.5  # longest sleep between two looks at what the coordinator wants
STALL_S = 10.0  # a source of weights that sends nothing for so long is passed over


def sample(settings: JoinSettings, precision: Precision | None, stop: StopFlag, metrics_port: int | None = None) -> None:
    """Sample until the run is over or `stop` is set. `metrics_port`: where its own figures are served; None: nowhere.

    Raises UsageError when the coordinator refuses to be joined, RunFailed when it is away for too long or sampling fails.
    """
    configure_jax()
    import jax

    figures = Latest()
    with figures.served(settings, metrics_port):
        participant = Participant("sampler", settings, {"device": jax.default_backend()}, stop)
        try:
            _Sampler(participant, settings, precision, stop, figures).run()
        finally:
            participant.end(leaves=True)


@dataclass(slots=True)
class _Pulse:
    """When the sampler last got on."""

    tokens: int
    token_s: float
    load_s: float
    version: int = -1


class _Sampler:
    """One process's; what it works on is made anew in each epoch."""

    def __init__(
        self, participant: Participant, settings: JoinSettings, precision: Precision | None, stop: StopFlag, figures: Latest
    ) -> None:
        self._one, self._stop, self._figures = participant, stop, figures
        self._precision: Precision | None = precision
        config, clock = participant.config, participant.clock
        self._shape: Shape = open_shape(config)
        self._over = threading.Event()
        self._ledger = RemoteLedger(participant.seat, clock, self._counters, lambda version: self._store.has(version))
        self._phases = Phases(participant.name, clock, participant.events)
        self._store = _store(participant, settings)
        self._watch = NewsWatch(self._ledger, self._hear)
        self._waited_s = 0.0  # before this epoch
        self._pulse = _Pulse(0, clock.now_s(), clock.now_s())
        self._engine, self._dispatch = self._anew()

    def run(self) -> None:
        one = self._one
        renewer = one.keep_lease(self._progress, self._counters, self._ledger.wake)
        self._watch.start()
        print(f"slipstream: {one.name} joined run {one.seat.joined.run_id} at {one.caller.url}", file=sys.stderr, flush=True)
        watchdog = one.watch([self._phases])
        try:
            while not self._ended():
                one.check()
                self._watch.check()
                self._figures.check()
                seen = self._ledger.sequence
                try:
                    if renewer.stale or (renewer.standing and renewer.standing.lineage > one.seat.joined.lineage):
                        raise StaleEpoch("the lease has ended")
                    if not self._turn():
                        self._ledger.wait_change(seen, LOOK_S)
                except StaleEpoch as error:
                    self._begin_again(str(error))
            try:
                self._farewell()
            except StaleEpoch as error:  # what it had is somebody else's already
                one.events.emit(one.name, "lease_lost", cause=str(error), tokens=self._dispatch.tokens)
                self._dispatch.close(drain=False)
        finally:
            self._phases.enter("ended")
            watchdog.close()
            self._watch.end()
            self._store.close()

    def _ended(self) -> bool:
        return self._stop.is_set() or self._over.is_set() or self._one.told_to_go

    def _turn(self) -> bool:
        busy, pulse, now_s = self._dispatch.turn(), self._pulse, self._one.clock.now_s()
        if self._dispatch.tokens != pulse.tokens:
            pulse.tokens, pulse.token_s = self._dispatch.tokens, now_s
        if self._engine.version != pulse.version:
            pulse.version, pulse.load_s = self._engine.version, now_s
        self._figures.note(self._dispatch, self._engine, self._phases, self._one.seat.joined.epoch)
        return busy

    def _begin_again(self, cause: str) -> None:
        """A new epoch with nothing in hand."""
        one = self._one
        one.events.emit(one.name, "lease_lost", cause=cause, tokens=self._dispatch.tokens)
        self._phases.enter("join")
        self._dispatch.close(drain=False)
        self._ledger.let_go()
        self._waited_s = self._phases.seconds().get("wait", 0.0)
        one.join_anew()
        self._engine, self._dispatch = self._anew()

    def _anew(self) -> tuple[Engine, Dispatch]:
        one, config = self._one, self._one.config
        engine = build_engine(config, self._shape, one.clock, one.name, config.sampling.slots, one.events, self._precision)
        self._pulse.tokens, self._pulse.version = 0, -1
        joined = one.seat.joined
        dispatch = Dispatch(
            sampler=CanarySampler(engine, canary(self._shape.spec, longest(config, self._shape)), self._prove),
            environments=self._environments(),
            ledger=self._ledger,
            store=self._store,
            collector=collector(config, self._shape, engine, joined.run_id, joined.lineage),
            rules=sampling_rules(config),
            phases=self._phases,
            events=one.events,
            clock=one.clock,
        )
        return engine, dispatch

    def _environments(self) -> Environments | Agents:
        """Who answers what is drawn in this epoch."""
        one = self._one
        if one.config.grading.on == "graders":
            return RemoteGrading(one.seat, self._ledger.wake)
        return open_environments(self._shape.task, clock=one.clock, on_answer=self._ledger.wake, events=one.events)

    def _prove(self, weights: WeightVersion, logprobs: np.ndarray) -> None:
        self._ledger.prove(weights.version, weights.digest, Canary(computed_by=self._engine.sampler_class, logprobs=logprobs.tolist()))

    def _farewell(self) -> None:
        """What is drawn and being judged is handed in; a run that is over needs nothing more."""
        one = self._one
        if self._over.is_set():
            self._dispatch.close(drain=False)
            return
        partials = self._partials()
        one.events.emit(one.name, "leaving", cause=self._stop.cause or "told to by the coordinator", partials=len(partials))
        if partials:
            self._ledger.save_progress(partials, patience_s=FAREWELL_S)
        self._dispatch.close(drain=True)

    def _partials(self) -> list[Partial]:
        """What is drawn of running samples. Going on from it takes a prefill, whose rounding is that of decoding in exact arithmetic
        only; a deterministic run in any other draws such samples anew, so that its result is that of an undisturbed one."""
        config = self._one.config
        if config.mode.kind != "inflight" and config.model.numerics != "exact":
            return []
        found: list[Partial] = []
        for index, key in self._dispatch.unfinished():
            ids, logprobs, versions = self._engine.drawn(key)
            if ids:
                arrays = {"logprobs": np.array(logprobs, np.float32), "versions": np.array(versions, np.int32)}
                found.append(Partial(ticket_index=index, sample=key[1], completion_ids=np.array(ids, np.int32), **arrays))
        return found

    def _hear(self, news: News) -> None:
        """In the thread of the watch."""
        for one in news.announcements:
            self._store.announce(manifest_from_json(one.manifest), one.sources)
        if news.done:
            self._over.set()

    def _counters(self) -> Head:
        """Since this epoch began."""
        return {"tokens": self._pulse.tokens, "wait_s": round(max(0.0, self._phases.seconds().get("wait", 0.0) - self._waited_s), 3)}

    def _progress(self) -> Progress:
        now_s, pulse = self._one.clock.now_s(), self._pulse
        return Progress(
            tokens=pulse.tokens,
            last_token_s=max(0.0, now_s - pulse.token_s),
            last_load_s=max(0.0, now_s - pulse.load_s),
            phase=self._phases.current,
            phase_s=max(0.0, self._phases.waited_s()),
        )


def _store(one: Participant, settings: JoinSettings) -> RemoteStore:
    """Where the weights come to; what is there is served to others."""
    config: RunConfig = one.config
    clock: Clock = one.clock
    tls = client_context(settings.address.ca_file) if settings.address.ca_file else None
    stall_s = min(STALL_S, one.caller.deadline_s)
    chunks = ChunkStore(keep=config.mode.eta + 2)
    fetcher = Fetcher(
        store=chunks,
        open_source=lambda url: open_source(url, settings.address.token or "", stall_s, tls),
        rules=FetchRules(stall_s=stall_s, seed=stream_seed(config.run.seed, "weights", one.name) & 0x7FFFFFFF),
        clock=clock,
        events=one.events,
        role=one.name,
    )
    one.server.start(chunks)
    pinned = config.mode.kind != "inflight"
    return RemoteStore(chunks=chunks, fetcher=fetcher, events=one.events, role=one.name, newest_only=not pinned)
