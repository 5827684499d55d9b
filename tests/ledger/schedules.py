"""A random run against the pure ledger: samplers, a learner, a weight store, checkpoints and crashes, with every promise checked.

Nothing here trusts the ledger's own bookkeeping: versions of samples, members of batches and what is trained are kept apart
and compared after every event. `Broken` is raised where a promise does not hold. A sample's verdict is a function of its key, as
in pinned runs, so what a pinned batch should be is known beforehand, whatever happens under way.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.ledger import rules
from slipstream.ledger.events import (
    Batched,
    Claimed,
    Event,
    Forgotten,
    GroupDropped,
    Restarted,
    SampleDropped,
    Submitted,
    Trained,
    TurnedAway,
)
from slipstream.ledger.state import LedgerState, Policy
from slipstream.ledger.transition import apply

Key = tuple[int, int]  # ticket index, sample index


class Broken(AssertionError):
    """A promise of the ledger did not hold in a schedule."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The decisions under test; tests of the checks themselves put worse ones in."""

    claimable: Callable[[LedgerState, int, int], list[rules.Grant]] = rules.claimable
    wanted_version: Callable[[LedgerState, int], int | None] = rules.wanted_version
    next_batch: Callable[[LedgerState], list[int] | None] = rules.next_batch
    gives_way: Callable[[LedgerState, int], bool] = rules.gives_way
    surplus: Callable[[LedgerState, Sequence[int]], list[int]] = rules.surplus
    turned_away: Callable[[LedgerState, int, int], bool] = rules.turned_away
    apply: Callable[[Event, LedgerState], LedgerState] = apply


@dataclass(kw_only=True)
class SamplerModel:
    """One sampler: the version it has loaded and the version it had at the claim of each sample it runs."""

    loaded: int = -1
    running: dict[Key, int] = field(default_factory=dict)


class Schedule:
    """One run from start to end in a random order that `seed` decides."""

    def __init__(self, seed: int, policy: Policy, *, samplers: int, crashes: int, decisions: Rules | None = None) -> None:
        self.random, self.seed = random.Random(seed), seed
        self.policy, self.rules = policy, decisions or Rules()
        self.state = LedgerState(policy=policy)
        self.journal: list[Event] = []
        self.samplers = [SamplerModel() for _ in range(samplers)]
        self.crashes_left = crashes
        self.weights = {0}  # versions in the store
        self.checkpoints = {0: 0}  # version -> length of the journal that was synced with it
        self.published = False  # the present batch has run and its version is out, not yet committed
        self.versions: dict[Key, tuple[int, int]] = {}  # oldest and newest version among a sample's tokens
        self.batches: dict[int, tuple[int, ...]] = {}
        self.left_out: dict[int, set[int]] = {}  # by batch, the tickets dropped for further ones
        self.issued: set[int] = set()
        self.ended: list[Key] = []  # samples that were handed in, for duplicates
        self.duplicates = 0

    def run(self) -> None:
        """To the last step; raises Broken, or what the ledger itself refuses."""
        while self.state.version < self.policy.steps:
            actions = self._useful_actions()
            if not actions:
                raise Broken(f"deadlock at version {self.state.version} with {self.state.balance()}")
            if self.random.random() < 0.15:
                self.random.choice((self._crash, self._lose_power, self._checkpoint, self._submit_again))()
            else:
                self.random.choice(actions)()
        self._check_end()

    # What can happen

    def _useful_actions(self) -> list[Callable[[], None]]:
        """Everything that can be done now and brings the run forward; each sampler claims with what it should have loaded."""
        actions: list[Callable[[], None]] = []
        claimable: dict[int, bool] = {}  # by the version loaded
        for sampler in self.samplers:
            if sampler.running:
                actions += [lambda sampler=sampler: self._finish(sampler)] * 2
            version = self._version_to_load(sampler)
            if version not in claimable:
                claimable[version] = bool(self.rules.claimable(self.state, 1, version))
            if claimable[version]:
                actions.append(lambda sampler=sampler: self._claim(sampler))
        if self.published or self.state.version < self.state.batched or self.rules.next_batch(self.state) is not None:
            actions.append(self._learn)
        return actions

    def _version_to_load(self, sampler: SamplerModel) -> int:
        """As the dispatcher does: pinned samplers change weights only between samples, the others any time."""
        newest = max(self.weights)
        if not self.policy.pinned:
            return newest
        wanted = None if sampler.running else self.rules.wanted_version(self.state, newest)
        if wanted is not None and wanted not in self.weights:
            raise Broken(f"version {wanted} is wanted, but the store has {sorted(self.weights)} only")
        return sampler.loaded if wanted is None else wanted

    def _claim(self, sampler: SamplerModel) -> None:
        stays_behind = not self.policy.pinned and sampler.loaded >= self.state.version and self.random.random() < 0.5
        if not stays_behind:
            sampler.loaded = self._version_to_load(sampler)
        for grant in self.rules.claimable(self.state, self.random.randint(1, 4), sampler.loaded):
            self._happen(Claimed(index=grant.index, worker="w", floor=grant.version))
            entry = self.state.entries[grant.index]
            for sample in range(self.policy.group_size):
                if sample not in entry.submitted and sample not in entry.dropped:
                    sampler.running[grant.index, sample] = sampler.loaded

    def _finish(self, sampler: SamplerModel) -> None:
        """One of its samples ends: judged, or now and then without a verdict. New weights may have come in under way."""
        if not self.policy.pinned and self.random.random() < 0.5:
            sampler.loaded = max(self.weights)
        key = self.random.choice(list(sampler.running))
        first = sampler.running.pop(key)
        oldest = self.random.randint(first, sampler.loaded)  # the first token may come long after the claim
        if self.rules.turned_away(self.state, *key):
            raise Broken(f"sample {key} is new, and turned away")
        self.ended.append(key)
        reward = self.verdict(*key)
        if reward is None:
            self._happen(SampleDropped(index=key[0], sample=key[1], reason="timeout"))
        else:
            self.versions[key] = (oldest, sampler.loaded)
            self._happen(Submitted(index=key[0], sample=key[1], content=f"{key} by {oldest}", oldest=oldest, reward=reward))
        if self.rules.gives_way(self.state, key[0]):
            self._happen(GroupDropped(index=key[0], step=self.state.batched, reason=rules.ZERO_VARIANCE))
        else:
            self._check_kept(key[0])

    def verdict(self, index: int, sample: int) -> float | None:
        """0 or 1 of every sample; of about one in ten none."""
        draw = (self.seed * 31 + index * 7919 + sample * 104729) * 2654435761 % 2**32 / 2**32
        return None if draw < 0.1 else float(draw < 0.5)

    def has_signal(self, index: int) -> bool:
        return {0.0, 1.0} <= {self.verdict(index, sample) for sample in range(self.policy.group_size)}

    def _submit_again(self) -> None:
        """A retried message: the ledger has the sample already, whatever became of its ticket since."""
        if not self.ended:
            return
        key = self.random.choice(self.ended)
        if not self.rules.turned_away(self.state, *key):
            raise Broken(f"sample {key} is taken a second time")
        self._happen(TurnedAway(index=key[0], sample=key[1]))
        self.duplicates += 1

    def _learn(self) -> None:
        """The learner's next move: fix the batch, or train on it and publish, or commit."""
        step = self.state.version
        if step == self.state.batched:
            members = self.rules.next_batch(self.state)
            if members is not None:
                for index in self.rules.surplus(self.state, members):
                    self._happen(GroupDropped(index=index, step=step, reason=rules.ZERO_VARIANCE))
                self._happen(Batched(step=step, members=tuple(members)))
                self._check_batch(step)
        elif not self.published:
            self._check_training(step)
            self.weights.add(step + 1)
            self.weights -= set(sorted(self.weights)[: -(self.policy.eta + 2)])
            self.published = True
        else:
            self._happen(Trained(step=step))
            self.published = False

    def _checkpoint(self) -> None:
        """The two newest are kept, and batches before the older of them are forgotten."""
        if self.published:
            return
        self.checkpoints[self.state.version] = len(self.journal)
        self.checkpoints = {version: self.checkpoints[version] for version in sorted(self.checkpoints)[-2:]}
        self._happen(Forgotten(step=min(self.checkpoints)))

    def _crash(self) -> None:
        """All processes die; the run goes on from either checkpoint that is left. The journal is whole."""
        if self.crashes_left:
            self.crashes_left -= 1
            self._go_on_from(self.random.choice(list(self.checkpoints)))

    def _lose_power(self) -> None:
        """As a crash, but what came after the last sync may be lost, in whole transactions from the end."""
        if not self.crashes_left:
            return
        self.crashes_left -= 1
        version = max(self.checkpoints)
        kept = self.random.randint(max(self.checkpoints.values()), len(self.journal))
        self.journal = self.journal[:kept]
        self.state = LedgerState(policy=self.policy)
        for event in self.journal:
            self.state = self.rules.apply(event, self.state)
        self.batches = {event.step: event.members for event in self.journal if isinstance(event, Batched)}
        self.issued, self.left_out = set(), {}
        for event in self.journal:
            self._note(event)
        self.ended = [(event.index, event.sample) for event in self.journal if isinstance(event, (Submitted, SampleDropped))]
        self.duplicates = sum(isinstance(event, TurnedAway) for event in self.journal)
        self._go_on_from(version)

    def _go_on_from(self, version: int) -> None:
        self.checkpoints = {old: length for old, length in self.checkpoints.items() if old <= version}
        self._happen(Restarted(version=version))
        self.weights = {version} | (set(range(max(0, version - self.policy.eta), version)) if self.policy.pinned else set())
        self.samplers = [SamplerModel() for _ in self.samplers]
        self.published = False

    # What must hold

    def _happen(self, event: Event) -> None:
        self.journal.append(event)
        self._note(event)
        self.state = self.rules.apply(event, self.state)
        balance = self.state.balance()
        if sum(balance.values()) != len(self.issued):
            raise Broken(f"tickets {balance} do not sum to the {len(self.issued)} ever claimed")
        if self.state.duplicates != self.duplicates + isinstance(event, TurnedAway):
            raise Broken("duplicates are counted wrongly")

    def _note(self, event: Event) -> None:
        if isinstance(event, Claimed):
            self.issued.add(event.index)
        elif isinstance(event, GroupDropped):
            self.left_out.setdefault(event.step, set()).add(event.index)

    def _check_kept(self, index: int) -> None:
        """In flight, a complete group without signal stays only where the batch has used up its refills."""
        if self.policy.pinned or len(self.left_out.get(self.state.batched, ())) == self.policy.refill or self.has_signal(index):
            return
        if all((index, sample) in self.ended for sample in range(self.policy.group_size)):
            raise Broken(f"ticket {index} has no signal and is kept, though batch {self.state.batched} has refills left")

    def _pinned_batch(self, step: int) -> tuple[tuple[int, ...], set[int]]:
        """Members of a pinned batch, and tickets that it drops: one prompt asked for after the other, in their order."""
        each, refill = self.policy.prompts_per_step, self.policy.refill
        further = self.policy.steps * each + step * refill
        waiting = [*range(step * each, (step + 1) * each), *range(further, further + refill)]
        useful: list[int] = []
        silent: list[int] = []
        while len(useful) < each and len(useful) + len(silent) < each + refill:
            index = waiting.pop(0)
            (useful if self.has_signal(index) else silent).append(index)
        filling = each - len(useful)
        return tuple(sorted(useful + silent[:filling])), set(silent[filling:])

    def _check_batch(self, step: int) -> None:
        members = tuple(self.state.members(step))
        if len(members) != self.policy.prompts_per_step:
            raise Broken(f"batch {step} has {len(members)} tickets")
        if self.batches.setdefault(step, members) != members:
            raise Broken(f"batch {step} was {self.batches[step]} and is fixed again as {members}")
        for other, taken in self.batches.items():
            if other != step and set(taken) & set(members):
                raise Broken(f"batches {other} and {step} share tickets")

    def _check_training(self, step: int) -> None:
        """The batch served now: the same as ever, and each of its samples of an allowed version."""
        members = tuple(self.state.members(step))
        if members != self.batches[step]:
            raise Broken(f"batch {step} was {self.batches[step]} and is now {members}")
        left_out = self.left_out.get(step, set())
        if len(left_out) > self.policy.refill or any(self.has_signal(index) for index in left_out):
            raise Broken(f"batch {step} was made without {left_out}")
        if self.policy.pinned and (members, left_out) != self._pinned_batch(step):
            raise Broken(f"pinned batch {step} is {members} without {left_out}")
        for index in members:
            entry = self.state.entries[index]
            if len(entry.submitted) + len(entry.dropped) != self.policy.group_size:
                raise Broken(f"ticket {index} is trained with samples missing")
            for sample in entry.submitted:
                oldest, newest = self.versions[index, sample]
                if not 0 <= step - newest <= step - oldest <= self.policy.eta:
                    raise Broken(f"sample {index}/{sample} of versions {oldest}..{newest} is trained at step {step}")
                if self.policy.pinned and {oldest, newest} != {max(0, step - self.policy.eta)}:
                    raise Broken(f"sample {index}/{sample} of versions {oldest}..{newest} is in pinned batch {step}")

    def _check_end(self) -> None:
        trained = [index for members in self.batches.values() for index in members]
        ended = sorted([*trained, *(index for left_out in self.left_out.values() for index in left_out)])
        planned = self.policy.steps * self.policy.prompts_per_step
        if ended != sorted(self.issued) or len(trained) != planned:
            raise Broken(f"trained {trained}, left out {self.left_out}: not every prompt exactly once")
        if ended[:planned] != list(range(planned)) or (not self.policy.pinned and ended[-1] >= len(ended)):
            raise Broken(f"prompts were passed over: only {ended} had their turn")
        if len(self.batches) != self.policy.steps:
            raise Broken(f"{len(self.batches)} batches for {self.policy.steps} steps")


def random_schedule(seed: int, *, pinned: bool, decisions: Rules | None = None) -> Schedule:
    """The schedule of a seed: a small random run with one to three samplers and up to three crashes."""
    draw = random.Random(f"shape {seed}")
    policy = Policy(
        eta=draw.randint(0, 4),
        prompts_per_step=draw.randint(1, 4),
        group_size=draw.randint(2, 3),
        pinned=pinned,
        steps=draw.choice((1, 2, 2, 3, 4, 8)),
        refill=draw.choice((0, 0, 0, 0, 1, 3)),
    )
    return Schedule(seed, policy, samplers=draw.randint(1, 3), crashes=draw.randint(0, 3), decisions=decisions)
