"""What a ledger promises, checked against a book of its own: nothing here trusts the ledger's bookkeeping. Called by `ledger.schedules`.

Versions of samples, members of batches, what was taken and what is trained are kept apart and compared. A sample's verdict is a function
of its key, as in pinned runs, so what a pinned batch should be is known beforehand, whatever happens under way.
"""

from collections import Counter
from dataclasses import dataclass, field

from slipstream.core.records import Receipt
from slipstream.ledger import rules
from slipstream.ledger.entries import Entries, TicketState
from slipstream.ledger.events import Batched, Claimed, Event, GroupDropped, Requeued, Returned, SampleDropped, Submitted, TurnedAway
from slipstream.ledger.state import STALE, LedgerState, Policy

Key = tuple[int, int]  # ticket index, sample index


class Broken(AssertionError):
    """A promise of the ledger did not hold in a schedule."""


@dataclass(slots=True, kw_only=True)
class WorkerModel:
    """One sampler process as it sees itself."""

    incarnation: str
    name: str = ""
    epoch: int = 0
    lineage: int = 0
    loaded: int = -1
    running: dict[Key, int] = field(default_factory=dict[Key, int])  # the oldest version that a sample may have a token of
    alive: bool = True
    speed: int = 2  # chances to finish something


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A sample on its way to the coordinator."""

    arrival: rules.Arrival
    sender: WorkerModel
    epoch: int
    lineage: int


def environment_of(index: int) -> str:
    """Two environments, turn by turn."""
    return "slow" if index % 2 else "fast"


class Promises:
    """The book of one run."""

    def __init__(self, seed: int, policy: Policy) -> None:
        self.seed, self.policy = seed, policy
        self.versions: dict[tuple[Key, str], tuple[int, int]] = {}  # oldest and newest of each content ever drawn
        self.begin_again()

    def begin_again(self) -> None:
        """Nothing is known but what was drawn; the journal will be read anew."""
        self.inside: dict[Key, str] = {}  # content of each sample that was taken; "": without a verdict
        self.batches: dict[int, tuple[int, ...]] = {}
        self.left_out: dict[int, set[int]] = {}  # by batch, the tickets dropped for further ones
        self.stale: set[int] = set()  # tickets dropped because of their age
        self.issued: set[int] = set()
        self.told: Counter[str] = Counter()  # receipts given
        self.returned = 0

    def check_sums(self, state: LedgerState) -> None:
        """Issued = trained + dropped + live, of tickets and of samples; and every answer is counted."""
        balance, samples = state.balance(), len(self.issued) * self.policy.group_size
        if not sum(balance.values()) == len(self.issued) == state.issued:
            raise Broken(f"tickets {balance} do not sum to the {len(self.issued)} ever claimed")
        live = sum(self.policy.group_size - len(entry.dropped) for _, entry in state.entries.live())
        ended = state.batched_samples + sum(state.samples_dropped.values())
        if samples + state.redrawn != live + ended:
            raise Broken(f"samples: {samples} and {state.redrawn} drawn anew, but {live} live and {ended} ended")
        if state.receipts != self.told:
            raise Broken(f"submissions are counted as {state.receipts}, and were answered with {self.told}")

    def verdict(self, index: int, sample: int) -> float | None:
        """0 or 1 of every sample; of about one in ten none."""
        draw = (self.seed * 31 + index * 7919 + sample * 104729) * 2654435761 % 2**32 / 2**32
        return None if draw < 0.1 else float(draw < 0.5)

    def has_signal(self, index: int) -> bool:
        return {0.0, 1.0} <= {self.verdict(index, sample) for sample in range(self.policy.group_size)}

    def note(self, event: Event, again: bool = False) -> None:
        """Keep book of what happened. `again`: the journal is read anew, and is all that is left."""
        if isinstance(event, Claimed):
            self.issued.add(event.index)
        elif isinstance(event, Submitted):
            self.inside[event.index, event.sample] = event.content
        elif isinstance(event, SampleDropped):
            self.inside[event.index, event.sample] = ""
        elif isinstance(event, Returned):
            self.returned += 1
        elif isinstance(event, GroupDropped) and event.reason == STALE:
            self.stale.add(event.index)
        elif isinstance(event, GroupDropped):
            self.left_out.setdefault(event.step, set()).add(event.index)
        elif isinstance(event, Requeued):
            for sample in range(self.policy.group_size):
                self.inside.pop((event.index, sample), None)
        elif isinstance(event, Batched) and again:
            self.batches[event.step] = event.members
        if again and isinstance(event, (Submitted, SampleDropped, TurnedAway)):
            self.told[Receipt(event.receipt) if isinstance(event, TurnedAway) else Receipt.ACCEPTED] += 1

    def check_receipt(self, state: LedgerState, letter: Letter, said: Receipt) -> None:
        """What is in is not taken again, and the holder of a lease is not turned away."""
        one = letter.arrival
        key, entry = (one.index, one.sample), state.entries.get(one.index)
        self.told[said] += 1
        if said is Receipt.ACCEPTED and key in self.inside:
            raise Broken(f"sample {key} is taken a second time")
        if said is Receipt.DUPLICATE and key not in self.inside:
            raise Broken(f"sample {key} is no duplicate")
        drawn, pinned = {one.oldest, one.newest}, max(0, self.policy.step_of(one.index) - self.policy.eta)
        if said is Receipt.CONFLICT and self.policy.pinned and drawn == {pinned}:
            raise Broken(f"sample {key} has two contents in a pinned run")
        leased = entry is not None and entry.state is TicketState.LEASED and entry.worker == letter.sender.name
        right = drawn == {pinned} if self.policy.pinned else entry is not None and one.oldest >= entry.floor
        new = leased and right and letter.epoch == letter.sender.epoch and key not in self.inside
        if new and said is not Receipt.ACCEPTED:
            raise Broken(f"sample {key} is new, and turned away as {said}")

    def check_caps(self, state: LedgerState) -> None:
        for environment, cap in self.policy.caps.items():
            leased = [index for index, entry in state.entries.live() if entry.state is TicketState.LEASED]
            if sum(environment_of(index) == environment for index in leased) > cap:
                raise Broken(f"more than {cap} tickets of {environment} are leased: {leased}")

    def check_entries(self, state: LedgerState) -> None:
        """What the tickets keep up to date with each change is what counting them again gives."""
        kept, anew = state.entries, Entries.of(dict(state.entries))
        for name in Entries.TABLES:
            if getattr(kept, name) != getattr(anew, name):
                mine, theirs = ({key: held for key, held in getattr(one, name).items() if held} for one in (kept, anew))
                if mine != theirs:
                    raise Broken(f"{name} of the tickets is {mine}, and should be {theirs}")

    def check_kept(self, state: LedgerState, index: int) -> None:
        """In flight, a complete group without signal stays only where the batch has used up its refills, and nothing too old stays."""
        entry = state.entries.get(index)
        if entry is None or entry.state is not TicketState.GROUPED:
            return
        if not self.policy.waits and entry.oldest is not None and state.batched - entry.oldest > self.policy.eta:
            raise Broken(f"ticket {index} is kept, though it is too old for batch {state.batched}")
        if self.policy.pinned or len(self.left_out.get(state.batched, ())) == self.policy.refill or self.has_signal(index):
            return
        if all((index, sample) in self.inside for sample in range(self.policy.group_size)):
            raise Broken(f"ticket {index} has no signal and is kept, though batch {state.batched} has refills left")

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

    def check_batch(self, state: LedgerState, step: int) -> None:
        members = tuple(state.members(step))
        if len(members) != self.policy.prompts_per_step:
            raise Broken(f"batch {step} has {len(members)} tickets")
        if self.batches.setdefault(step, members) != members:
            raise Broken(f"batch {step} was {self.batches[step]} and is fixed again as {members}")
        for other, taken in self.batches.items():
            if other != step and set(taken) & set(members):
                raise Broken(f"batches {other} and {step} share tickets")

    def check_training(self, state: LedgerState, step: int) -> None:
        """The batch served now: the same as ever, and each of its samples of an allowed version."""
        members = tuple(state.members(step))
        if members != self.batches[step]:
            raise Broken(f"batch {step} was {self.batches[step]} and is now {members}")
        left_out = self.left_out.get(step, set())
        if len(left_out) > self.policy.refill or any(self.has_signal(index) for index in left_out):
            raise Broken(f"batch {step} was made without {left_out}")
        if self.policy.pinned and (members, left_out) != self._pinned_batch(step):
            raise Broken(f"pinned batch {step} is {members} without {left_out}")
        for index in members:
            entry = state.entries[index]
            if len(entry.submitted) + len(entry.dropped) != self.policy.group_size:
                raise Broken(f"ticket {index} is trained with samples missing")
            for sample in entry.submitted:
                key = (index, sample)
                if self.inside[key] != entry.submitted[sample]:
                    raise Broken(f"sample {index}/{sample} was taken as {self.inside[key]} and is trained as {entry.submitted[sample]}")
                oldest, newest = self.versions[key, entry.submitted[sample]]
                if not 0 <= step - newest <= step - oldest <= self.policy.eta:
                    raise Broken(f"sample {index}/{sample} of versions {oldest}..{newest} is trained at step {step}")
                if self.policy.pinned and {oldest, newest} != {max(0, step - self.policy.eta)}:
                    raise Broken(f"sample {index}/{sample} of versions {oldest}..{newest} is in pinned batch {step}")

    def check_end(self, state: LedgerState) -> None:
        self.check_entries(state)
        trained = [index for members in self.batches.values() for index in members]
        ended = sorted([*trained, *self.stale, *(index for left_out in self.left_out.values() for index in left_out)])
        planned = self.policy.steps * self.policy.prompts_per_step
        if ended != sorted(self.issued) or len(trained) != planned:
            raise Broken(f"trained {trained}, left out {self.left_out} and {self.stale}: not every prompt exactly once")
        if ended[:planned] != list(range(planned)) or (not self.policy.pinned and ended[-1] >= len(ended)):
            raise Broken(f"prompts were passed over: only {ended} had their turn")
        if len(self.batches) != self.policy.steps:
            raise Broken(f"{len(self.batches)} batches for {self.policy.steps} steps")
