"""A random run against the pure ledger: workers that come, go, freeze and lie, a slow network, a learner, crashes, power cuts.

Pure but for its seed. Played by the tests, and by `slipstream bench ledger --soak`.
"""

import random

from slipstream.ledger import moves
from slipstream.ledger.entries import TicketState
from slipstream.ledger.events import Started, decode, encode
from slipstream.ledger.promises import Broken, WorkerModel
from slipstream.ledger.snapshots import snapshot_from_text, snapshot_to_text
from slipstream.ledger.state import LedgerState, Policy
from slipstream.ledger.turns import Turns

LONGEST = 20_000  # turns; a schedule takes about a hundred


class Schedule(Turns):
    """One run from start to end in a random order that `seed` decides; `troubles` of the things that can happen to it do."""

    def __init__(self, seed: int, policy: Policy, *, workers: int, troubles: int) -> None:
        super().__init__(seed, policy, workers=workers)
        self.troubles_left = troubles

    def run(self) -> None:
        """To the last step; raises Broken, or what the ledger itself refuses."""
        troubles = (
            *(self._kill, self._freeze, self._leave, self._send_partials, self._lose_claim, self._deliver_again, self._lie),
            *(self._restart_coordinator, self._tear, self._restart_learner, self._lose_power, self._lose_coordinator),
        )
        for _ in range(LONGEST):
            if self.state.version == self.policy.steps:
                break
            if self.troubles_left and self.random.random() < 0.3:
                self.troubles_left -= 1
                self._choice(troubles)()
                continue
            steps = self._next_steps()
            if not self._choice(steps)() and not any(step() for step in self.random.sample(steps, len(steps))):
                raise Broken(f"deadlock at version {self.state.version} with {self.state.balance()}")
        else:
            raise Broken(f"deadlock: no end after {LONGEST} turns at version {self.state.version} with {self.state.balance()}")
        self.promises.check_end(self.state)

    def _kill(self) -> None:
        """Dead, with what it runs; some of its letters are still on their way."""
        worker = self._choice(self.workers)
        worker.alive, worker.running = False, {}
        self.mail = [letter for letter in self.mail if letter.sender is not worker or self.random.random() < 0.5]

    def _freeze(self) -> None:
        """Longer than its lease. Then it goes on, and learns of it only when it asks."""
        worker = self._choice(self.workers)
        self.seen["zombies"] += bool(worker.running)
        self._expire(worker)

    def _leave(self) -> None:
        """As on a preemption notice: partial tokens go first, and another process may come for it."""
        worker = self._choice(self.workers)
        if worker.alive and self._is_member(worker):
            self._save(worker)
            self._depart(worker, "left")
            worker.running = {}
            self.workers[self.workers.index(worker)] = self._new_worker()

    def _send_partials(self) -> None:
        worker = self._choice(self.workers)
        if worker.alive and self._is_member(worker):
            self._save(worker)

    def _save(self, worker: WorkerModel) -> None:
        for (index, sample), first in worker.running.items():
            entry = self.state.entries.get(index)
            if entry is not None and entry.state is TicketState.LEASED and entry.worker == worker.name and first >= entry.floor:
                self.partials[index, sample] = (first, worker.loaded)

    def _lose_claim(self) -> None:
        """The answer never reaches the worker."""
        members = [worker for worker in self.workers if worker.alive and self._is_member(worker)]
        if members:
            self._claim(self._choice(members), heard=False)

    def _deliver_again(self) -> None:
        """A retried message, whatever became of its ticket since."""
        if self.delivered:
            self._deliver(self._choice(self.delivered))

    def _lie(self) -> None:
        """A sample comes in that another version than its ticket's is said to have drawn."""
        worker = self._choice(self.workers)
        if not worker.running:
            return
        key = self._choice(list(worker.running))
        version = worker.running[key] - 1
        if version >= 0 or self.policy.pinned:
            self._send(worker, key, abs(version), abs(version))
            self._deliver(self.mail[-1])

    def _restart_coordinator(self) -> None:
        """It dies between two messages; everybody else goes on. It comes back from its journal, or from a snapshot."""
        played = LedgerState(policy=self.policy)
        for event in self.journal:
            played = moves.apply(decode(*encode(event)), played)
        for came_back in (played, snapshot_from_text(snapshot_to_text(self.state))):
            if came_back != self.state:
                raise Broken("the state is another one after a restart")
        self.promises.check_entries(self.state)
        self._happen_one(Started())

    def _tear(self) -> None:
        """It dies in the middle of a transaction, or right after it: the sender hears nothing and sends its letter again."""
        if not self.mail:
            return
        letter, state = self._choice(self.mail), self.state
        if self.random.random() < 0.5:
            self._deliver(letter)
            self.mail.append(letter)
        elif not self._refused(letter):
            moves.receive(moves.Play(self.state), letter.arrival)
        if state is not self.state or self.random.random() < 0.5:
            self._happen_one(Started())

    def _restart_learner(self) -> None:
        """It dies alone and goes on from either checkpoint that is left."""
        self._go_on_from(self._choice(list(self.checkpoints)))

    def _lose_power(self) -> None:
        """All processes die, and what came after the last sync may be lost, in whole transactions from the end."""
        self._cut_power()
        self.mail, self.delivered, self.partials = [], [], {}
        self.workers = [self._new_worker() for _ in self.workers]
        self._begin_term()
        self._go_on_from(max(self.checkpoints))

    def _lose_coordinator(self) -> None:
        """Only the coordinator's machine loses its power: workers, letters and the learner with its batch go on."""
        before, version = dict(self.promises.batches), self.state.version
        self._cut_power()
        self.partials = {key: versions for key, versions in self.partials.items() if self.state.knows(key[0])}
        if self.promises.batches != before or self.state.version != version:
            raise Broken(f"a power cut undid a batch: {before} at version {version}, now {self.promises.batches} at {self.state.version}")
        self.seen["power cuts"] += 1
        self._begin_term()

    def _begin_term(self) -> None:
        """Whoever has gone without the journal's knowing lets its lease end."""
        self._happen_one(Started())
        for name, entry in self.state.workers.items():
            if entry.here and not any((one.name, one.epoch) == (name, entry.epoch) for one in self.workers):
                self._depart(WorkerModel(incarnation="", name=name), "expired")

    def _cut_power(self) -> None:
        kept = self._choice([length for length in self.transactions if length >= self.synced] or [self.synced])
        self.journal = self.journal[:kept]
        self.transactions = [length for length in self.transactions if length <= kept]
        self.state = LedgerState(policy=self.policy)
        self.promises.begin_again()
        for event in self.journal:
            self.state = moves.apply(event, self.state)
            self.promises.note(event, again=True)

    def _go_on_from(self, version: int) -> None:
        self.checkpoints = {old for old in self.checkpoints if old <= version}
        before, play = self.state.lineage, moves.Play(self.state)
        moves.restart(play, version)
        self._happen(play)
        self.weights = {version, *(range(max(0, version - self.policy.eta), version) if self.policy.pinned else ())}
        self.published = False
        if self.state.lineage == before:
            return
        self.partials = {}
        for worker in self.workers:
            if self._is_member(worker):
                raise Broken(f"{worker.name} is still taken for a member of lineage {self.state.lineage}")


def random_policy(seed: int, *, pinned: bool) -> Policy:
    """The rules of a seed: a small run."""
    draw = random.Random(f"shape {seed}")
    staleness = "wait" if pinned else draw.choice(("wait", "drop", "requeue"))
    return Policy(
        eta=draw.choice((0, 1, 1, 2, 3)) if staleness == "wait" else draw.choice((0, 1)),
        prompts_per_step=draw.choice((1, 2, 3)),
        group_size=draw.choice((2, 2, 3)),
        pinned=pinned,
        steps=draw.choice((1, 2, 2, 3, 5)),
        refill=draw.choice((0, 0, 0, 0, 1, 3)),
        staleness=staleness,
        caps=draw.choice(({}, {}, {}, {"slow": 1}, {"slow": 2, "fast": 1})),
    )


def random_schedule(seed: int, *, pinned: bool) -> Schedule:
    """The schedule of a seed: one to three workers at a time and up to ten troubles."""
    draw = random.Random(f"troubles {seed}")
    return Schedule(seed, random_policy(seed, pinned=pinned), workers=draw.randint(1, 3), troubles=draw.randint(0, 10))
