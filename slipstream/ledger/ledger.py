"""The ledger of one process: the state machine behind a lock, journalled before it moves. Implements `core.ports.Ledger`.

Opening an existing journal replays it, from the newest snapshot on, and begins the next term; `restart` then puts the run back to the
version of the learner's checkpoint. Workers that join hold their tickets for as long as they renew their lease; one that never joined
(the sampler of an embedded run, which lives and dies with the ledger) holds them until a restart.
"""

import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed, StaleEpoch, TransitionError
from slipstream.core.ids import group_id, ticket_id
from slipstream.core.ports import PromptStream
from slipstream.core.records import Batch, Membership, Partial, Progress, Receipt, Rollout, Standing, Ticket
from slipstream.ledger import moves, rules
from slipstream.ledger.counters import counters
from slipstream.ledger.entries import TicketIndex
from slipstream.ledger.events import Event, Forgotten, Opened, Requeued, Started, Trained
from slipstream.ledger.flow import flow
from slipstream.ledger.intake import arrival, check_partial
from slipstream.ledger.journal import Contents, Journal
from slipstream.ledger.leases import Leases
from slipstream.ledger.reading import read_batch
from slipstream.ledger.recent import Recent
from slipstream.ledger.replaying import replayed
from slipstream.ledger.running import Running
from slipstream.ledger.snapshots import snapshot_to_text
from slipstream.ledger.state import LedgerState, Policy
from slipstream.ledger.taken import Taken
from slipstream.ledger.transition import apply
from slipstream.telemetry.status import FlowStatus

LEASE_S = 30.0
STALLED_S = 1_200.0  # a worker with tickets that draws nothing for so long is as good as dead
SNAPSHOT_EVENTS = 50_000  # between two snapshots, at least: replaying so many takes about a second


class Ledger:
    """Thread-safe. `sequence` grows with every change and `wait_change` sleeps until it does, so that waiting costs nothing."""

    def __init__(
        self,
        path: Path,
        policy: Policy,
        prompts: PromptStream,
        clock: Clock,
        *,
        run_id: str = "",
        environment_of: rules.EnvironmentOf = rules.one_environment,
        lease_s: float = LEASE_S,
        stalled_s: float = STALLED_S,
        snapshot_events: int = SNAPSHOT_EVENTS,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        """`run_id`: rollouts of other runs are refused ("": any is taken). `environment_of`: whose cap a ticket counts to (`Policy.caps`).
        `warn` is told of a snapshot that could not be used."""
        self._journal = Journal(path)
        self._prompts, self._clock, self._run_id, self._environment_of = prompts, clock, run_id, environment_of
        self._snapshot_events, self._warn = snapshot_events, warn
        self._leases = Leases(lease_s, stalled_s)
        self._state = LedgerState(policy=policy)
        self._unsaved = 0  # events since the last snapshot
        self._recent = Recent()
        self._draining = set[str]()
        self._incarnations: dict[str, str] = {}  # worker by incarnation
        self._batch: Batch | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sequence = 0
        try:
            with self._lock:
                self._open()
        except RunFailed:
            self._journal.close()
            raise

    def _open(self) -> None:
        """Come to the journal's state and begin the next term; a new journal begins with the rules."""
        try:
            found = replayed(self._journal, self._state, self._warn)
        except TransitionError as error:
            raise RunFailed(f"{self._journal.path} is damaged, or run.toml was changed since: {error}") from error
        self._running = Running(self._journal)
        if found is None:
            self._append([Opened(**asdict(self._state.policy))], self._state)
            return
        state, self._unsaved = found
        self._append([Started()], apply(Started(), state))
        for name, worker in self._state.workers.items():
            self._incarnations[worker.incarnation] = name
            if worker.here:
                self._leases.begin(name, self._clock.now_s())

    @property
    def state(self) -> LedgerState:
        """As it is now; immutable."""
        return self._state

    @property
    def sequence(self) -> int:
        """Grows with every change."""
        return self._sequence

    def counters(self) -> dict[str, Any]:
        """What became of every ticket, sample and submission (`counters.counters`)."""
        return counters(self._state)

    def flow(self) -> FlowStatus:
        """Where the samples are at this moment (`flow.flow`)."""
        return flow(self._state, self._environment_of)

    def wait_change(self, seen: int, timeout_s: float) -> bool:
        """Sleep until `sequence` is no longer `seen`, at most `timeout_s`; False when nothing changed."""
        with self._lock:
            return self._changed.wait_for(lambda: self._sequence != seen, timeout_s)

    # Workers

    def join(self, kind: str, incarnation: str, capabilities: Mapping[str, str]) -> Membership:
        """A worker comes. The same incarnation again is the same worker, one epoch later, with none of the tickets it had."""
        with self._lock:
            play = moves.Play(self._state)
            worker = moves.join(play, kind, incarnation, self._incarnations.get(incarnation), capabilities)
            self._record(play)
            self._incarnations[incarnation] = worker
            self._draining.discard(worker)
            self._leases.begin(worker, self._clock.now_s())
            state = self._state
            return Membership(
                worker=worker,
                epoch=state.workers[worker].epoch,
                term=state.term,
                lineage=state.lineage,
                lease_s=self._leases.lease_s,
            )

    def check(self, worker: str, epoch: int) -> None:
        """Raises StaleEpoch unless the worker is here under this epoch."""
        entry = self._state.workers.get(worker)
        if entry is None or entry.epoch != epoch or not entry.here:
            known = "it is unknown" if entry is None else f"its epoch is {entry.epoch}, and it {'is here' if entry.here else 'is gone'}"
            raise StaleEpoch(f"worker {worker} has no lease under epoch {epoch}: {known}; join again")

    def renew(self, worker: str, epoch: int, progress: Progress) -> Standing:
        """The lease goes on, unless the worker has tickets and has not got on for too long. Raises StaleEpoch."""
        with self._lock:
            self.check(worker, epoch)
            self._leases.renew(worker, progress, bool(self._state.entries.held_by(worker)), self._clock.now_s())
            state = self._state
            return Standing(
                newest=state.version,
                oldest=max(0, state.batched - state.policy.eta),
                lineage=state.lineage,
                drain=worker in self._draining,
                stop=state.version >= state.policy.steps,
            )

    def drain(self, worker: str) -> None:
        """From now on the worker gets no tickets, and is told to leave."""
        with self._lock:
            self._draining.add(worker)

    def leave(self, worker: str, epoch: int) -> None:
        """The worker goes politely: its tickets come back at once. Raises StaleEpoch; said twice it is heard once."""
        with self._lock:
            entry = self._state.workers.get(worker)
            if entry is None or entry.epoch != epoch or entry.here:
                self.check(worker, epoch)
                self._depart(worker, "left")

    def expire(self) -> list[str]:
        """Workers whose lease has ended by now; their tickets are open again. To be called now and then."""
        with self._lock:
            ended = list(self._leases.ended(self._clock.now_s()))
            for worker in ended:
                self._depart(worker, "expired")
            return ended

    def progress(self) -> dict[str, Progress]:
        """What each worker that is here last said of itself."""
        with self._lock:
            return self._leases.progress()

    def silent_s(self) -> dict[str, float]:
        """Seconds since each worker that is here said it."""
        with self._lock:
            return self._leases.silent_s(self._clock.now_s())

    def _depart(self, worker: str, reason: str) -> None:
        play = moves.Play(self._state)
        moves.depart(play, worker, reason)
        self._record(play)
        self._leases.end(worker)
        self._draining.discard(worker)

    # Sampling

    def wanted_version(self, newest: int) -> int | None:
        return rules.wanted_version(self._state, newest, self._environment_of)

    def claim(
        self, worker: str, tickets: int, loaded_version: int, *, epoch: int | None = None, holding: Collection[TicketIndex] | None = None
    ) -> list[Ticket]:
        """As the port says. `epoch`: of a worker that has joined; raises StaleEpoch. `holding`: indices of all tickets that the worker
        knows it has: others that are leased to it were lost on the way to it, and are open again."""
        with self._lock:
            if epoch is not None:
                self.check(worker, epoch)
            play = moves.Play(self._state)
            granted = moves.claim(
                play,
                worker,
                0 if worker in self._draining else tickets,
                loaded_version,
                environment_of=self._environment_of,
                partials_of=lambda index: self._running.of(self._state, index),
                holding=holding,
            )
            self._record(play)
            return [self._ticket(one) for one in granted]

    def submit(self, rollouts: Sequence[Rollout]) -> list[Receipt]:
        with self._lock:
            seen = [arrival(self._state, rollout, self._run_id) for rollout in rollouts]
            play, taken = moves.Play(self._state), Taken()
            receipts: list[Receipt] = []
            for rollout, (one, content) in zip(rollouts, seen, strict=True):
                start = len(play.events)
                receipts.append(moves.receive(play, one))
                taken.note(play.events[start:], rollout, content)
            self._record(play, taken)
            return receipts

    def save_progress(self, worker: str, epoch: int, partials: Sequence[Partial]) -> None:
        """Keep what running samples have so far, for whoever may have to go on. Raises StaleEpoch or RolloutRefused.

        Those of tickets that are no longer the worker's are left out.
        """
        with self._lock:
            self.check(worker, epoch)
            for partial in partials:
                check_partial(self._state, partial)
            self._running.save(self._state, worker, partials)

    def _ticket(self, granted: moves.Granted) -> Ticket:
        index, pinned = granted.grant.index, self._state.policy.pinned
        return Ticket(
            id=ticket_id(index),
            index=index,
            group_id=group_id(index),
            prompt=self._prompts.prompt(index),
            samples=tuple(self._state.left(index)),
            version_floor=self._state.entries[index].floor,
            version_pinned=granted.grant.version if pinned else None,
            partials=granted.partials,
        )

    # Training

    def batch(self, step: int) -> Batch | None:
        with self._lock:
            if step == self._state.batched:
                play = moves.Play(self._state)
                if not moves.fix(play):
                    return None
                self._record(play)
                self._running.drop_done(self._state)
            if self._batch is None or self._batch.step != step:
                self._batch = read_batch(self._journal, self._recent, self._state, step)
                self._recent.forget(self._state.entries.of_step(step))
            return self._batch

    def commit(self, step: int) -> None:
        with self._lock:
            play = moves.Play(self._state)
            play.add(Trained(step=step))
            self._record(play)

    def restart(self, version: int) -> None:
        """The learner goes on from its checkpoint of `version`: later batches are served again from the journal.

        Leases end, but for those of workers that are here, unless the checkpoint is older than the last version: then the lineage is
        another, and everybody must join again.
        """
        with self._lock:
            if version > self._state.version:
                raise RunFailed(
                    f"the journal knows {self._state.version} trained steps, the checkpoint {version}: they are of different runs"
                )
            if version * self._state.policy.prompts_per_step < self._state.forgotten:
                raise RunFailed(f"the checkpoint of step {version} is older than the batches that the journal still has; start a new run")
            lineage = self._state.lineage
            play = moves.Play(self._state)
            moves.restart(play, version)
            self._record(play)
            if self._state.lineage != lineage:
                for worker in self._state.workers:
                    self._leases.end(worker)
                self._running.drop_all()

    def journal_length(self) -> int:
        """Events so far."""
        with self._lock:
            return self._journal.length()

    def sync(self) -> None:
        """Make the journal survive a power cut; before a checkpoint counts as existing."""
        with self._lock:
            self._journal.sync()

    def forget_before(self, step: int) -> None:
        """Batches before `step` will never be served again: the oldest checkpoint kept is `step` or newer."""
        with self._lock:
            entries = self._state.entries
            tickets = [index for old in entries.steps() if old < step for index in entries.of_step(old)]
            event = Forgotten(step=step)
            self._append([event], apply(event, self._state), Contents(forgotten=(tickets, step)))
            self._recent.forget(tickets)

    def wake(self) -> None:
        """Let everyone who waits look again, though nothing changed here (new weights, a stop)."""
        with self._lock:
            self._sequence += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._journal.close()

    def save_snapshot(self) -> None:
        """So that the next start need not play what is there by now; also done by itself now and then."""
        with self._lock:
            self._journal.save_snapshot(snapshot_to_text(self._state))
            self._unsaved = 0

    def _record(self, play: moves.Play, taken: Taken | None = None) -> None:
        """Write what was played, then move: nothing is visible that is not on disk, nothing on disk that is not legal."""
        if not play.events:
            return
        state, taken = play.end(), taken or Taken()
        anew = [event.index for event in play.events if isinstance(event, Requeued)]
        self._append(play.events, state, taken.contents(anew, state.batched))
        self._recent.forget(anew)
        taken.keep_in(self._recent)
        self._sequence += 1
        self._changed.notify_all()

    def _append(self, events: Sequence[Event], state: LedgerState, contents: Contents | None = None) -> None:
        self._journal.append(self._clock.now_s(), events, contents)
        self._state = state
        if contents is not None:
            self._running.gone((*contents.anew, *contents.forgotten[0]))
        self._unsaved += len(events)
        if self._unsaved >= max(self._snapshot_events, 4 * len(state.entries)):  # so they cost a small part of the time
            self.save_snapshot()
