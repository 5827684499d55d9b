"""A random run against the pure ledger: workers that come, go, freeze and lie, a slow network, a learner, crashes. Pure but for its seed.

After every message the promises are checked (`ledger.promises`). Played by the tests, and by `slipstream bench ledger --soak`.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from slipstream.core.records import Partial, Receipt
from slipstream.ledger import moves, rules
from slipstream.ledger.entries import TicketState
from slipstream.ledger.events import Event, Forgotten, Requeued, Started, Trained, decode, encode
from slipstream.ledger.promises import Broken, Key, Letter, Promises, WorkerModel, environment_of
from slipstream.ledger.snapshots import snapshot_from_text, snapshot_to_text
from slipstream.ledger.state import LedgerState, Policy

Option = TypeVar("Option")
LONGEST = 20_000  # turns; a schedule takes about a hundred


class Schedule:
    """One run from start to end in a random order that `seed` decides; `troubles` of the things that can happen to it do."""

    def __init__(self, seed: int, policy: Policy, *, workers: int, troubles: int) -> None:
        self.random, self.seed, self.policy = random.Random(seed), seed, policy
        self.state = LedgerState(policy=policy)
        self.journal: list[Event] = []
        self.transactions = [0]  # lengths of the journal between which a torn tail may cut
        self.started = 0  # processes, to name them
        self.workers = [self._new_worker() for _ in range(workers)]
        self.mail: list[Letter] = []
        self.delivered: list[Letter] = []
        self.partials: dict[Key, tuple[int, int]] = {}  # beside the journal
        self.troubles_left = troubles
        self.weights: set[int] = {0}  # versions in the store
        self.checkpoints = {0: 0}  # version -> length of the journal that was synced with it
        self.published = False  # the present batch has run and its version is out, not yet committed
        self.promises = Promises(seed, policy)
        self.seen: Counter[str] = Counter()  # what happened in this schedule, for those who ask whether it happens at all

    def run(self) -> None:
        """To the last step; raises Broken, or what the ledger itself refuses."""
        troubles = (
            *(self._kill, self._freeze, self._leave, self._send_partials, self._lose_claim, self._deliver_again, self._lie),
            *(self._restart_coordinator, self._tear, self._restart_learner, self._lose_power),
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

    def _choice(self, options: Sequence[Option]) -> Option:
        """One of them (random.choice does this in three times the time)."""
        return options[int(self.random.random() * len(options))]

    # What brings the run forward

    def _next_steps(self) -> list[Callable[[], bool]]:
        """All that may bring the run forward; each says whether it could be done. The first that can be is."""
        steps: list[Callable[[], bool]] = [self._learn, *[self._deliver_one] * min(2, len(self.mail))]
        for worker in self.workers:
            steps += [lambda worker=worker: self._finish(worker)] * (worker.speed if worker.running else 0)
            steps.append(lambda worker=worker: self._bury(worker) or self._join(worker) or self._claim(worker))
        return steps

    def _new_worker(self) -> WorkerModel:
        self.started += 1
        return WorkerModel(incarnation=f"process {self.started}", speed=self._choice((1, 2, 8)))

    def _is_member(self, worker: WorkerModel) -> bool:
        entry = self.state.workers.get(worker.name)
        return entry is not None and entry.here and entry.epoch == worker.epoch

    def _join(self, worker: WorkerModel) -> bool:
        """It begins anew; what it ran for an older epoch it gives up now, or goes on with (a zombie's samples describe themselves)."""
        if self._is_member(worker):
            return False
        play = moves.Play(self.state)
        known = worker.name or None
        worker.name = moves.join(play, "sampler", worker.incarnation, known, {"device": "cpu"})
        self._happen(play)
        if worker.lineage != self.state.lineage or self.random.random() < 0.5:
            worker.running = {}
        worker.epoch, worker.lineage = self.state.workers[worker.name].epoch, self.state.lineage
        return True

    def _version_to_load(self, worker: WorkerModel) -> int:
        """As the dispatcher does: pinned samplers change weights only between samples, the others any time."""
        newest = max(self.weights)
        if not self.policy.pinned:
            return newest
        wanted = None if worker.running else rules.wanted_version(self.state, newest, environment_of)
        if wanted is not None and wanted not in self.weights:
            raise Broken(f"version {wanted} is wanted, but the store has {sorted(self.weights)} only")
        return worker.loaded if wanted is None else wanted

    def _claim(self, worker: WorkerModel, heard: bool = True) -> bool:
        stays_behind = not self.policy.pinned and worker.loaded >= self.state.version and self.random.random() < 0.5
        if not stays_behind:
            worker.loaded = self._version_to_load(worker)
        sending = {letter.arrival.index for letter in self.mail if letter.sender is worker}
        play = moves.Play(self.state)
        granted = moves.claim(
            play,
            worker.name,
            self._choice((1, 2, 3, 4)),
            worker.loaded,
            environment_of=environment_of,
            partials_of=self._partials_of,
            holding={index for index, _ in worker.running} | sending,
        )
        if not play.events:
            return False
        self._happen(play)
        self.promises.check_caps(self.state)
        for one in granted if heard else ():
            index = one.grant.index
            entry, begun = self.state.entries[index], {partial.sample: int(partial.versions.min()) for partial in one.partials}
            self.seen["continued"] += len(begun)
            for sample in range(self.policy.group_size):
                if sample not in entry.submitted and sample not in entry.dropped:
                    worker.running[index, sample] = min(worker.loaded, begun.get(sample, worker.loaded))
        return True

    def _partials_of(self, index: int) -> list[Partial]:
        found = [(sample, versions) for (ticket, sample), versions in self.partials.items() if ticket == index]
        return [
            Partial(
                ticket_index=index,
                sample=sample,
                completion_ids=np.zeros(2, np.int32),
                logprobs=np.zeros(2, np.float32),
                versions=np.array(versions, np.int32),
            )
            for sample, versions in found
            if (index, sample) not in self.promises.inside
        ]

    def _finish(self, worker: WorkerModel) -> bool:
        """One of its samples ends: judged, or now and then without a verdict. New weights may have come in under way."""
        if not worker.running:
            return False
        if not self.policy.pinned and self._is_member(worker) and self.random.random() < 0.5:
            worker.loaded = max(self.weights)
        key = self._choice(list(worker.running))
        first = worker.running.pop(key)
        oldest = self._choice(range(min(first, worker.loaded), worker.loaded + 1))  # the first token may come long after the claim
        self._send(worker, key, oldest, worker.loaded)
        if self.random.random() < 0.7:
            self._deliver(self.mail[-1])
        return True

    def _send(self, worker: WorkerModel, key: Key, oldest: int, newest: int) -> None:
        reward = self.promises.verdict(*key)
        data = f"{key} by {oldest}" if self.policy.pinned else f"{key} by {oldest} at {worker.name}"
        arrival = rules.Arrival(
            index=key[0],
            sample=key[1],
            content=f"{data:<16.16}{worker.name}/{worker.epoch}/{newest}",
            oldest=oldest,
            newest=newest,
            tokens=1 + key[1],
            reward=reward,
            outcome="timeout",
        )
        self.promises.versions[key, arrival.content] = (oldest, newest)
        self.mail.append(Letter(arrival=arrival, sender=worker, epoch=worker.epoch, lineage=worker.lineage))

    def _deliver_one(self) -> bool:
        self._deliver(self._choice(self.mail))
        return True

    def _deliver(self, letter: Letter) -> None:
        play = moves.Play(self.state)
        if not self._refused(letter):
            said = moves.receive(play, letter.arrival)
            self.promises.check_receipt(self.state, letter, said)
            self._happen(play)
            if said is Receipt.ACCEPTED:
                self.promises.check_kept(self.state, letter.arrival.index)
        if letter in self.mail:
            self.mail.remove(letter)
        self.delivered.append(letter)

    def _refused(self, letter: Letter) -> bool:
        """As `intake.arrival` does."""
        refused = letter.lineage != self.state.lineage or not self.state.knows(letter.arrival.index)
        refused |= letter.arrival.newest > self.state.version + 1
        self.seen["refused"] += refused
        return refused

    def _learn(self) -> bool:
        """The learner's next move: fix the batch, or train on it and publish, or commit."""
        step, play = self.state.version, moves.Play(self.state)
        if step == self.state.batched:
            if not moves.fix(play):
                return False
            self._happen(play)
            self.promises.check_batch(self.state, step)
        elif not self.published:
            self.promises.check_training(self.state, step)
            self.weights.add(step + 1)
            self.weights -= set(sorted(self.weights)[: -(self.policy.eta + 2)])
            self.published = True
        else:
            play.add(Trained(step=step))
            self._happen(play)
            self.published = False
            if self.random.random() < 0.25:
                self._checkpoint()
        return True

    # Troubles

    def _bury(self, worker: WorkerModel) -> bool:
        """A dead one's lease ends at last; another process takes its place."""
        if not worker.alive:
            self._expire(worker)
            self.workers[self.workers.index(worker)] = self._new_worker()
        return not worker.alive

    def _expire(self, worker: WorkerModel) -> None:
        if self._is_member(worker):
            self._depart(worker, "expired")

    def _depart(self, worker: WorkerModel, reason: str) -> None:
        play = moves.Play(self.state)
        moves.depart(play, worker.name, reason)
        self._happen(play)

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

    def _checkpoint(self) -> None:
        """The two newest are kept, and batches before the older of them are forgotten."""
        self.checkpoints[self.state.version] = len(self.journal)
        self.checkpoints = {version: self.checkpoints[version] for version in sorted(self.checkpoints)[-2:]}
        play = moves.Play(self.state)
        play.add(Forgotten(step=min(self.checkpoints)))
        self._happen(play)

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
        version, synced = max(self.checkpoints), max(self.checkpoints.values())
        kept = self._choice([length for length in self.transactions if length >= synced] or [synced])
        self.journal = self.journal[:kept]
        self.transactions = [length for length in self.transactions if length <= kept]
        self.state = LedgerState(policy=self.policy)
        self.promises.begin_again()
        for event in self.journal:
            self.state = moves.apply(event, self.state)
            self.promises.note(event, again=True)
        self.mail, self.delivered, self.partials = [], [], {}
        self.workers = [self._new_worker() for _ in self.workers]
        self._happen_one(Started())
        for name, entry in self.state.workers.items():
            if entry.here:
                self._depart(WorkerModel(incarnation="", name=name), "expired")
        self._go_on_from(version)

    def _go_on_from(self, version: int) -> None:
        self.checkpoints = {old: length for old, length in self.checkpoints.items() if old <= version}
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

    # The coordinator

    def _happen_one(self, event: Event) -> None:
        play = moves.Play(self.state)
        play.add(event)
        self._happen(play)

    def _happen(self, play: moves.Play) -> None:
        self.journal += play.events
        self.transactions.append(len(self.journal))
        self.state = play.state
        for event in play.events:
            self.promises.note(event)
            if isinstance(event, Requeued):
                self.partials = {key: versions for key, versions in self.partials.items() if key[0] != event.index}
        self.promises.check_sums(self.state)


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
