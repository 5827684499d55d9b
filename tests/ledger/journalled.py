"""A random run against the `Ledger` on a real journal: workers with leases by the clock, restarts, torn writes, spoilt snapshots.

What the pure schedules cannot see: that bytes on disk say what the state says. Batches are compared byte for byte whenever they are served.
"""

import random
import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from slipstream.core.clock import ManualClock
from slipstream.core.codec import rollout_to_bytes
from slipstream.core.errors import RolloutRefused, StaleEpoch
from slipstream.core.records import Membership, Outcome, Partial, Progress, Rollout, Ticket
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.promises import Broken
from slipstream.ledger.state import Policy
from tests.ledger.rollouts import JUDGED, TIMEOUT, WRONG, NumberedPrompts, make_rollout

LEASE_S = 3.0
LONGEST = 4_000  # turns; a schedule takes some hundred


@dataclass(kw_only=True)
class Process:
    """One worker as it sees itself."""

    incarnation: str
    here: Membership | None = None
    loaded: int = -1
    running: dict[tuple[int, int], tuple[Ticket, list[int]]] = field(default_factory=dict)  # with the versions of its tokens so far
    outbox: list[Rollout] = field(default_factory=list)


class JournalledSchedule:
    """One run from start to end in a random order that `seed` decides."""

    def __init__(self, seed: int, policy: Policy, path: Path) -> None:
        self.random, self.policy, self.path = random.Random(seed), policy, path
        self.clock, self.warnings = ManualClock(), list[str]()
        self.opened = self.processes_started = 0
        self.workers = [self._new() for _ in range(self.random.randint(1, 3))]
        self.batches: dict[int, bytes] = {}
        self.seen: dict[tuple[int, int], int] = {}  # batch of each sample ever trained
        self.recorded: dict[int, int] = {}  # rollouts of each batch, useless ones included
        self.troubles = self.random.randint(0, 8)
        self.ledger = self._open(path)

    def run(self) -> None:
        """To the last step; raises Broken."""
        for _ in range(LONGEST):
            if self.ledger.state.version == self.policy.steps:
                self._check_counters()
                self.ledger.close()
                return
            if self.troubles and self.random.random() < 0.1:
                self.troubles -= 1
                self.random.choice((self._kill, self._freeze, self._leave, self._crash, self._tear, self._spoil, self._go_back))()
            else:
                self.random.choice((self._work, self._work, self._work, self._learn))()
            self.clock.advance(0.1)
            self.ledger.expire()
        raise Broken(f"no end: {self.ledger.counters()}")

    def _open(self, path: Path) -> Ledger:
        self.path, self.opened = path, self.opened + 1
        return Ledger(
            path,
            self.policy,
            NumberedPrompts(),
            self.clock,
            run_id="run",
            environment_of=lambda index: "slow" if index % 2 else "fast",
            lease_s=LEASE_S,
            snapshot_events=15,
            warn=self.warnings.append,
        )

    def _new(self) -> Process:
        self.processes_started += 1
        return Process(incarnation=f"process {self.processes_started}")

    def _work(self) -> None:
        """One turn of one worker: join, or renew, claim, draw, hand in."""
        worker = self.random.choice(self.workers)
        try:
            if worker.here is None:
                worker.here = self.ledger.join("sampler", worker.incarnation, {})
                worker.running, worker.outbox = {}, []
            standing = self.ledger.renew(worker.here.worker, worker.here.epoch, Progress())
            self._load(worker, standing.newest)
            self._claim(worker, worker.here)
            self._draw(worker, worker.here)
        except StaleEpoch:
            worker.here = None  # what it has is handed in all the same, as long as it has not joined again
        self._hand_in(worker)

    def _load(self, worker: Process, newest: int) -> None:
        wanted = newest if not self.policy.pinned else None if worker.running else self.ledger.wanted_version(newest)
        worker.loaded = worker.loaded if wanted is None else wanted

    def _claim(self, worker: Process, here: Membership) -> None:
        holding = {index for index, _ in worker.running} | {rollout.ticket_index for rollout in worker.outbox}
        if len(worker.running) > 4:
            return
        for ticket in self.ledger.claim(here.worker, 2, worker.loaded, epoch=here.epoch, holding=holding):
            begun = {partial.sample: partial.versions.tolist() for partial in ticket.partials}
            if ticket.version_pinned is not None and any({*versions} != {ticket.version_pinned} for versions in begun.values()):
                raise Broken(f"{ticket} has partial tokens of another version")
            for sample in ticket.samples:
                worker.running[ticket.index, sample] = (ticket, begun.get(sample, []))

    def _draw(self, worker: Process, here: Membership) -> None:
        """A token for each sample, of the version loaded now; some end."""
        for key, (ticket, versions) in list(worker.running.items()):
            versions.append(worker.loaded)
            if self.random.random() < 0.4:
                del worker.running[key]
                worker.outbox.append(make_rollout(ticket, key[1], versions, _verdict(key), here.worker, here.lineage))
        if self.random.random() < 0.3:
            self.ledger.save_progress(here.worker, here.epoch, [_partial(key, versions) for key, (_, versions) in worker.running.items()])

    def _hand_in(self, worker: Process) -> None:
        if worker.outbox and self.random.random() < 0.7:
            sent = self.random.sample(worker.outbox, self.random.randint(1, len(worker.outbox)))
            try:
                self.ledger.submit(sent)
            except RolloutRefused:
                sent = worker.outbox  # of a lineage that has ended
            if self.random.random() < 0.8:  # or the answer is lost, and they are sent again
                worker.outbox = [rollout for rollout in worker.outbox if not any(rollout is one for one in sent)]

    def _learn(self) -> None:
        step = self.ledger.state.version
        batch = self.ledger.batch(step)
        if batch is None:
            return
        every = (*batch.rollouts, *batch.dropped, *batch.aside)
        self.recorded[step] = len(every)
        content = b"".join(map(rollout_to_bytes, every))
        if self.batches.setdefault(step, content) != content:
            raise Broken(f"batch {step} is another one than before")
        for rollout in batch.rollouts:
            key = (rollout.ticket_index, rollout.sample_index)
            if self.seen.setdefault(key, step) != step:
                raise Broken(f"sample {key} is in batches {self.seen[key]} and {step}")
            lags = step - rollout.versions
            if not (lags.min() >= 0 and lags.max() <= self.policy.eta):
                raise Broken(f"sample {key} of versions {rollout.versions} is trained at step {step}")
        self.ledger.commit(step)

    def _kill(self) -> None:
        self.workers[self.random.randrange(len(self.workers))] = self._new()

    def _freeze(self) -> None:
        """Everybody but one is away for longer than a lease; their renewals come too late."""
        self.clock.advance(LEASE_S + 1)
        self.ledger.expire()

    def _leave(self) -> None:
        worker = self.random.choice(self.workers)
        if worker.here is not None:
            try:
                self.ledger.leave(worker.here.worker, worker.here.epoch)
            except StaleEpoch:
                worker.here = None

    def _crash(self) -> None:
        """SIGKILL between two messages: the file and its log as they lie there."""
        self._reopen(len(self._log()))

    def _tear(self) -> None:
        """SIGKILL in the middle of writing a message, which nobody is told of."""
        worker = self.random.choice(self.workers)
        before = len(self._log())
        if worker.outbox:
            try:
                self.ledger.submit(worker.outbox)
            except RolloutRefused:
                return
            self._reopen(self.random.randint(before, max(before, len(self._log()) - 1)))

    def _log(self) -> bytes:
        return Path(f"{self.path}-wal").read_bytes()

    def _reopen(self, kept: int) -> None:
        copy = self.path.with_name(f"{self.path.name}.{self.opened}")
        copy.write_bytes(self.path.read_bytes())
        Path(f"{copy}-wal").write_bytes(self._log()[:kept])
        term = self.ledger.state.term
        self.ledger.close()
        self.ledger = self._open(copy)
        if self.ledger.state.term != term + 1:
            raise Broken(f"term {self.ledger.state.term} follows {term}")

    def _spoil(self) -> None:
        """A snapshot is damaged: the journal does without it, and says so."""
        state = replace(self.ledger.state, term=self.ledger.state.term + 1)
        self.ledger.close()
        database = sqlite3.connect(self.path)
        (damaged,) = database.execute("select count(*) from snapshot").fetchone()
        database.execute("update snapshot set content = substr(content, 1, length(content) / 2)")
        database.commit()
        database.close()
        self.warnings.clear()
        self.ledger = self._open(self.path)
        if self.ledger.state != state or len(self.warnings) != damaged:
            raise Broken(f"with {damaged} damaged snapshots: {self.warnings}, {self.ledger.state} instead of {state}")

    def _go_back(self) -> None:
        """The learner starts again from an older version, or the newest."""
        self.ledger.restart(self.random.randint(max(0, self.ledger.state.version - 1), self.ledger.state.version))

    def _check_counters(self) -> None:
        counted = self.ledger.counters()
        samples = counted["samples"]
        if samples["issued"] != samples["batched"] + samples["live"] + sum(samples["dropped"].values()) or samples["live"]:
            raise Broken(f"samples do not sum up: {counted}")
        recorded = sum(self.recorded.values()) + len(self.ledger._journal.aside(self.policy.steps))
        if recorded != counted["submissions"]["accepted"]:
            raise Broken(f"{recorded} rollouts were recorded of those taken: {counted}")
        if samples["batched"] != len(self.seen) or sorted(self.batches) != list(range(self.policy.steps)):
            raise Broken(f"{len(self.seen)} samples of batches {sorted(self.batches)} were trained: {counted}")


def _verdict(key: tuple[int, int]) -> Outcome:
    return (JUDGED, WRONG, JUDGED, WRONG, TIMEOUT)[(key[0] * 7 + key[1] * 3) % 5]


def _partial(key: tuple[int, int], versions: list[int]) -> Partial:
    tokens = len(versions)
    return Partial(
        ticket_index=key[0],
        sample=key[1],
        completion_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5, np.float32),
        versions=np.array(versions, np.int32),
    )
