"""What brings a random run against the pure ledger forward: workers that join, claim, draw and send, and a learner. Base of a `Schedule`.

Pure but for its seed. After every message the promises are checked (`ledger.promises`).
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from slipstream.core.records import Partial, Receipt
from slipstream.ledger import moves, rules
from slipstream.ledger.events import DURABLE, Event, Forgotten, Requeued, Trained
from slipstream.ledger.promises import Broken, Key, Letter, Promises, WorkerModel, environment_of
from slipstream.ledger.state import LedgerState, Policy

Option = TypeVar("Option")


class Turns:
    """One run and all who take part. `seed` decides what comes first."""

    def __init__(self, seed: int, policy: Policy, *, workers: int) -> None:
        self.random, self.seed, self.policy = random.Random(seed), seed, policy
        self.state = LedgerState(policy=policy)
        self.journal: list[Event] = []
        self.transactions = [0]  # lengths of the journal between which a torn tail may cut
        self.started = 0  # processes, to name them
        self.workers = [self._new_worker() for _ in range(workers)]
        self.mail: list[Letter] = []
        self.delivered: list[Letter] = []
        self.partials: dict[Key, tuple[int, int]] = {}  # beside the journal
        self.weights: set[int] = {0}  # versions in the store
        self.checkpoints = {0}  # versions
        self.synced = 0  # length of the journal that a power cut leaves at least
        self.published = False  # the present batch has run and its version is out, not yet committed
        self.promises = Promises(seed, policy)
        self.seen: Counter[str] = Counter()  # what happened in this schedule, for those who ask whether it happens at all

    def _choice(self, options: Sequence[Option]) -> Option:
        """One of them (random.choice does this in three times the time)."""
        return options[int(self.random.random() * len(options))]

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
        entry = self.state.workers.get(worker.name)
        known = worker.name if entry is not None and entry.incarnation == worker.incarnation else None
        worker.name = moves.join(play, "sampler", worker.incarnation, known, {"device": "cpu"})
        self._happen(play)
        if worker.lineage != self.state.lineage or self.random.random() < 0.5:
            worker.running = {}
        worker.epoch, worker.lineage = self.state.workers[worker.name].epoch, self.state.lineage
        if any((one.name, one.epoch) == (worker.name, worker.epoch) for one in self.workers if one is not worker):
            raise Broken(f"two workers are {worker.name} in epoch {worker.epoch}")
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

    def _checkpoint(self) -> None:
        """The two newest are kept, and batches before the older of them are forgotten."""
        self.synced = len(self.journal)
        self.checkpoints = set(sorted({*self.checkpoints, self.state.version})[-2:])
        self._happen_one(Forgotten(step=min(self.checkpoints)))

    # The coordinator

    def _happen_one(self, event: Event) -> None:
        play = moves.Play(self.state)
        play.add(event)
        self._happen(play)

    def _happen(self, play: moves.Play) -> None:
        self.journal += play.events
        self.transactions.append(len(self.journal))
        self.state = play.end()
        for event in play.events:
            self.promises.note(event)
            if isinstance(event, Requeued):
                self.partials = {key: versions for key, versions in self.partials.items() if key[0] != event.index}
            if isinstance(event, DURABLE):
                self.synced = len(self.journal)
        self.promises.check_sums(self.state)
