"""What the coordinator does for each message: the ledger's calls, with who may make them, and what the ledger does not keep.

Synchronous and called by one thread, the ledger's; what it keeps beside the ledger (published manifests, workers' counters) is lost
with the process and comes back from the workers. Called by `coordinator.app`.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import StaleEpoch
from slipstream.core.records import Batch, Membership, Progress, Receipt, Rollout, Standing, Ticket
from slipstream.ledger.entries import TicketState
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import WorkerEntry
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.checks import Bounds, check_rollout
from slipstream.runtime.coordinator.families import families
from slipstream.runtime.coordinator.messages import (
    CODE_VERSION,
    SCHEMA_VERSION,
    Announcement,
    Begin,
    Call,
    Claim,
    Counters,
    EventRow,
    Join,
    Joined,
    MessageError,
    News,
    Note,
    Prove,
    Publish,
    Ratios,
    Renew,
    Report,
    SaveProgress,
    Step,
    Submit,
    Wanted,
    Watch,
    partial_from_wire,
)
from slipstream.runtime.coordinator.samplers import Samplers
from slipstream.runtime.coordinator.trust import Fault, Trust
from slipstream.telemetry.jsonl import JsonlWriter
from slipstream.telemetry.status import RoleStatus, RunStatus

MOST_AHEAD_S = 60.0  # by one event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a joiner is told of the run."""

    run_id: str
    config: str  # TOML
    run_dir: str
    host: str
    grading: str = "samplers"  # who judges: grading.on


class Desk:
    """One run's. `closing` ends long polls."""

    def __init__(
        self, ledger: Ledger, facts: RunFacts, bounds: Bounds, announcements: Announcements, events: JsonlWriter, clock: Clock
    ) -> None:
        self._ledger, self._facts, self._bounds, self._announcements = ledger, facts, bounds, announcements
        self._events, self._clock, self._trust = events, clock, Trust(announcements, bounds.ratio_band, bounds.ratio_tokens)
        self._ahead_s = 0.0  # of the clock: what passed while the coordinator was down, as the workers' events tell
        self._samplers = Samplers(ledger)
        self._joined = set[tuple[str, int]]()  # workers with their epochs, since this start
        self._reported: dict[str, int] = {}  # events handed in, by process
        self._own_changes = 0
        self._seen: tuple[int, list[str]] = (-1, [])  # the state of things as of a sequence
        self.finished = False  # the last checkpoint is written too
        self.closing = False

    @property
    def sequence(self) -> int:
        """Grows with every change of what `news` or `batch` may answer."""
        return self._ledger.sequence + self._own_changes

    @property
    def term(self) -> int:
        return self._ledger.state.term

    @property
    def done(self) -> bool:
        """The last batch is trained."""
        state = self._ledger.state
        return state.version >= state.policy.steps

    @property
    def workers(self) -> Mapping[str, WorkerEntry]:
        """All that ever joined; another object whenever one of them has changed. May be read by any thread."""
        return self._ledger.state.workers

    @property
    def present(self) -> list[str]:
        """Workers that have joined and neither left nor lost their lease."""
        return [name for name, worker in self._ledger.state.workers.items() if worker.here]

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        """Something that happened now."""
        self._events.write({"time": round(self._now_s(), 6), "role": role, "kind": kind, **fields})

    def join(self, message: Join) -> Joined:
        """Raises MessageError for another program, another run, or a second learner."""
        if (message.schema_version, message.code) != (SCHEMA_VERSION, CODE_VERSION):
            raise MessageError(
                f"this {message.kind} is slipstream {message.code} and speaks schema {message.schema_version}; the coordinator is "
                f"slipstream {CODE_VERSION} and speaks schema {SCHEMA_VERSION}; install the coordinator's version",
                409,
            )
        self._check_run(message.run_id or self._facts.run_id)
        if message.kind == "grader" and self._facts.grading != "graders":
            words = "no grader is needed here: this run's samplers judge what they draw"
            raise MessageError(f"{words} (grading.on = {self._facts.grading!r}); a run with grading.on = 'graders' takes graders", 409)
        state = self._ledger.state
        namesakes = [name for name, one in state.workers.items() if one.incarnation == message.incarnation and one.kind != message.kind]
        if namesakes:
            raise MessageError(f"{message.incarnation!r} is the name of {namesakes[0]}; a {message.kind} needs another --name", 409)
        learners = [name for name in self.present if state.workers[name].kind == message.kind == "learner"]
        others = [name for name in learners if state.workers[name].incarnation != message.incarnation]
        if others:
            raise MessageError(f"{others[0]} trains this run already; a second learner has to wait until its lease ends", 409)
        return self._seated(self._ledger.join(message.kind, message.incarnation, message.capabilities))

    def _seated(self, member: Membership) -> Joined:
        facts, state = self._facts, self._ledger.state
        self._samplers.begin(member.worker, member.epoch, self._now_s())
        self._joined.add((member.worker, member.epoch))
        entry = state.workers[member.worker]
        self.emit("coordinator", "joined", worker=member.worker, name=entry.incarnation, epoch=member.epoch, **entry.capabilities)
        return Joined(
            worker=member.worker,
            epoch=member.epoch,
            term=member.term,
            lease_s=member.lease_s,
            run_id=facts.run_id,
            clock_s=self._now_s(),
            config=facts.config,
            run_dir=facts.run_dir,
            host=facts.host,
            version=state.version,
            lineage=member.lineage,
        )

    def renew(self, message: Renew) -> Standing:
        """Raises StaleEpoch for a worker that is not here in this epoch."""
        self._check_run(message.run_id)
        progress = Progress(**{field.name: getattr(message, field.name) for field in fields(Progress)})
        standing = self._ledger.renew(message.worker, message.epoch, progress)
        self._samplers.count(message)
        return standing

    def leave(self, message: Call) -> None:
        """Polite: the worker's tickets come back at once. Said twice it is heard once. A learner that leaves a run that is done ends it."""
        self._check_run(message.run_id)
        here = message.worker in self.present
        self._ledger.leave(message.worker, message.epoch)
        if here:
            self.finished = self.finished or (self.done and self._ledger.state.workers[message.worker].kind == "learner")
            self.emit("coordinator", "left", worker=message.worker)

    def claim(self, message: Claim) -> list[Ticket]:
        self._present(message)
        self._check_memory(message, message.holding, open_too=True)
        self._samplers.count(message).loaded = message.loaded_version
        return self._ledger.claim(message.worker, message.tickets, message.loaded_version, epoch=message.epoch, holding=message.holding)

    def wanted(self, message: Wanted) -> int | None:
        self._present(message)
        return self._ledger.wanted_version(message.newest)

    def submit(self, message: Submit, rollouts: list[Rollout]) -> list[Receipt]:
        """Whoever has drawn them: rollouts describe themselves, and an ended lease makes no token worse. Other weights than those that
        were published do: then none is taken, and the sampler is told to leave."""
        self._check_run(message.run_id)
        lineage = self._ledger.state.lineage
        self._check_memory(message, [rollout.ticket_index for rollout in rollouts])
        for rollout in rollouts:
            if rollout.lineage < lineage:
                raise StaleEpoch(f"rollouts of lineage {rollout.lineage} are of no use: the run is at lineage {lineage}; join again")
            check_rollout(rollout, self._bounds)
        self._samplers.count(message)
        if fault := self._trust.fault(rollouts):
            self._quarantine(message.worker, message.epoch, fault)
        sound = not self._trust.quarantined(message.worker, message.epoch)
        receipts = self._ledger.submit(rollouts) if sound else [Receipt.STALE] * len(rollouts)
        refused = [receipt for receipt in receipts if receipt is not Receipt.ACCEPTED]
        if refused:
            self.emit("coordinator", "turned_away", worker=message.worker, receipts=[str(receipt) for receipt in refused])
        return receipts

    def prove(self, message: Prove) -> None:
        """A canary that is not the learner's puts its sampler in quarantine."""
        self._present(message)
        gap = self._trust.gap(message)
        if fault := self._trust.unproven(message, gap):
            self._quarantine(message.worker, message.epoch, fault)
        elif gap is not None:
            self.emit("coordinator", "proven", worker=message.worker, version=message.version, gap=gap)

    def ratios(self, message: Ratios) -> None:
        """A sampler whose mean importance ratio leaves its band is put in quarantine. What it drew in earlier epochs does not count."""
        self._present_learner(message)
        for ratio in message.ratios:
            entry = self._ledger.state.workers.get(ratio.sampler)
            if entry is None or ratio.claimed_s < (told := self._samplers.of(ratio.sampler, entry.epoch)).joined_s:
                continue
            if (window := self._trust.window(ratio.sampler, entry.epoch, ratio)) is None:
                continue
            told.ratio = window.mean
            self.emit("coordinator", "ratio", worker=ratio.sampler, version=window.version, ratio=window.mean, tokens=window.tokens)
            if fault := self._trust.off_ratio(window):
                self._quarantine(ratio.sampler, entry.epoch, fault)

    def _quarantine(self, worker: str, epoch: int, fault: Fault) -> None:
        """Its tickets come back at once; it leaves when it next renews its lease."""
        if self._trust.quarantined(worker, epoch):
            return
        self._trust.quarantine(worker, epoch)
        self.emit("coordinator", "quarantined", worker=worker, version=fault.version, gap=fault.gap, cause=fault.cause)
        entry = self._ledger.state.workers.get(worker)
        if entry is not None and entry.here and entry.epoch == epoch:
            self._ledger.drain(worker)
            self._ledger.claim(worker, 1, -1, epoch=epoch, holding=())  # gets none, and gives back what it holds

    def save_progress(self, message: SaveProgress) -> None:
        """That of a sampler in quarantine is not kept."""
        self._present(message)
        if self._trust.quarantined(message.worker, message.epoch):
            return
        self._check_memory(message, [partial.ticket_index for partial in message.partials])
        self._ledger.save_progress(message.worker, message.epoch, [partial_from_wire(partial) for partial in message.partials])

    def begin(self, message: Begin) -> Joined:
        """The learner is at `version` and trains on from there: what came later is served again. Where that is a step back, every
        worker has to join anew; the learner has by this call."""
        entry, state = self._present_learner(message), self._ledger.state
        if message.version > state.version:
            raise MessageError(f"a checkpoint of step {message.version} is of another run: this one has trained {state.version}", 409)
        if message.version * state.policy.prompts_per_step < state.forgotten:
            raise MessageError(f"a checkpoint of step {message.version} is older than the batches that this run still has", 409)
        self._ledger.restart(message.version)
        self.finished = False
        self._announcements.clear()
        self._own_changes += 1
        return self._seated(self._ledger.join(entry.kind, entry.incarnation, entry.capabilities))

    def batch(self, message: Step) -> Batch | None:
        self._present_learner(message)
        state = self._ledger.state
        if message.step > state.batched or (message.step < state.batched and not state.members(message.step)):
            raise MessageError(
                f"there is no batch {message.step}: {state.batched} are fixed, and those before the kept checkpoints are gone", 409
            )
        return self._ledger.batch(message.step)

    def commit(self, message: Step) -> Counters:
        """A step that is trained already was committed by this call before; its answer got lost."""
        self._present_learner(message)
        if message.step != self._ledger.state.version - 1:
            self._ledger.commit(message.step)
        return self._samplers.counters

    def publish(self, message: Publish) -> None:
        self._present_learner(message)
        if self._announcements.publish(message):
            self._own_changes += 1

    def sync(self, message: Call) -> None:
        self._present_learner(message)
        self._ledger.sync()

    def forget(self, message: Step) -> None:
        self._present_learner(message)
        self._ledger.forget_before(message.step)

    def news(self, message: Watch) -> News | None:
        """The state of things, if it is not the one that the worker has seen."""
        self._present(message)
        if self._seen[0] != self.sequence:  # the same for all who wait
            wanted = self._ledger.wanted_version(self._announcements.newest)
            seen = [f"term {self.term}", f"wanted {wanted}", f"done {self.done}", *self._announcements.names]
            self._seen = (self.sequence, seen)
        seen = self._seen[1]
        if seen == message.seen:
            return None
        known = message.seen if message.seen[:1] == seen[:1] else []
        announcements = [self._with_peers(one, message.worker) for one in self._announcements.but(known)]
        return News(seen=seen, announcements=announcements, done=self.done)

    def _with_peers(self, one: Announcement, worker: str) -> Announcement:
        """With the samplers that have the version already and serve it."""
        workers = self._ledger.state.workers
        having = [name for name, told in self._samplers.here().items() if told.loaded >= one.version and name != worker]
        return one.model_copy(
            update={"sources": [*one.sources, *(url for name in having if (url := workers[name].capabilities.get("weights")))]}
        )

    def report(self, message: Report) -> None:
        """Events in the order in which they are numbered; those that came before are passed over."""
        self._present(message)
        written = self._reported.get(message.stream, 0)
        for row in message.events[max(0, written - message.first) :]:
            self._write(row)
            self._ahead_s += min(MOST_AHEAD_S, max(0.0, (row.time or 0.0) - self._now_s()))
        self._reported[message.stream] = max(written, message.first + len(message.events))

    def note(self, message: Note) -> None:
        """Events of a supervisor."""
        for row in message.events:
            self._write(row)

    def expire(self) -> None:
        """Called now and then: workers whose lease has ended are gone, and their tickets can be claimed again."""
        for name in self._ledger.expire():
            self.emit("coordinator", "lease_ended", worker=name)

    def moment(self) -> RunStatus:
        """What everyone does, as far as they have said."""
        state, told = self._ledger.state, self._ledger.progress()
        roles = (
            RoleStatus(
                role=worker,
                kind=state.workers[worker].kind,
                phase=told[worker].phase or "start",
                phase_s=told[worker].phase_s + silent_s,
                heard_s=silent_s,
            )
            for worker, silent_s in self._ledger.silent_s().items()
        )
        return RunStatus(time=self._now_s(), unix_s=time.time(), roles=tuple(roles), flow=self._ledger.flow())

    def health(self) -> dict[str, Any]:
        """For people and supervisors; tells nothing of what is sampled. May be called by any thread."""
        state, present = self._ledger.state, sorted(self.present)
        names = [state.workers[worker].incarnation for worker in present]
        return {"version": state.version, "steps": state.policy.steps, "term": state.term, "workers": present, "names": names}

    def figures(self) -> list[list[str]]:
        """All families of /metrics."""
        return families(self._ledger, self._samplers, self._announcements.newest, self._trust.count)

    def _now_s(self) -> float:
        """Run clock. Leases are kept by the ledger's own, which nobody can put forward."""
        return self._clock.now_s() + self._ahead_s

    def _write(self, row: EventRow) -> None:
        time_s = self._now_s() if row.time is None else row.time
        own = {"time": round(time_s, 6), "role": row.role, "kind": row.kind}
        self._events.write(own | {name: value for name, value in row.fields.items() if name not in own})

    def _check_run(self, run_id: str) -> None:
        if run_id != self._facts.run_id:
            raise MessageError(f"this coordinator keeps run {self._facts.run_id}, the call is for run {run_id}; join again", 409)

    def _present(self, message: Call) -> WorkerEntry:
        """The worker of a call, if it is of this run and here in this epoch."""
        self._check_run(message.run_id)
        self._ledger.check(message.worker, message.epoch)
        return self._ledger.state.workers[message.worker]

    def party(self, message: Call, kind: str | None = None) -> tuple[str, int]:
        """The worker of a call and its epoch, if it is here in it, and of a kind. Looks at the newest state; for any thread."""
        entry = self._present(message)
        if kind is not None and entry.kind != kind:
            raise MessageError(f"{message.worker} is a {entry.kind}; only a {kind} may do this", 409)
        return message.worker, message.epoch

    def _check_memory(self, message: Call, tickets: Iterable[int], *, open_too: bool = False) -> None:
        """A power cut may take the last claims out of the journal. Who made them before this start and works on them joins anew.

        `open_too`: also where the ticket may be claimed once more, by the same worker too, which could not work on it twice. Raises
        StaleEpoch.
        """
        if (message.worker, message.epoch) in self._joined:
            return
        state = self._ledger.state
        for index in tickets:
            entry = state.entries.get(index)
            if not state.knows(index) or (open_too and entry is not None and entry.state is TicketState.OPEN):
                raise StaleEpoch(f"the journal has lost that {message.worker} claimed ticket {index}; join again")

    def _present_learner(self, message: Call) -> WorkerEntry:
        entry = self._present(message)
        if entry.kind != "learner":
            raise MessageError(f"{message.worker} is a {entry.kind}; only a learner may do this", 409)
        return entry
