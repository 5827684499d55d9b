"""What can be done to a run, and a schedule of it that is a function of a seed. Pure; called by `chaos.running`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

COORDINATOR, LEARNER = "coordinator", "learner"


class FaultKind(StrEnum):
    """What is done."""

    KILL = "kill"  # SIGKILL to a role
    FREEZE = "freeze"  # SIGSTOP to a role for longer than a lease, then SIGCONT
    TORN_JOURNAL = "torn journal"  # the coordinator is killed, and what its journal had not forced to the disk is cut off or overwritten
    FULL_DISK = "full disk"  # for everybody who writes into the run directory, until somebody has died of it
    CORRUPT_CHUNK = "corrupt chunk"  # one bit of weights on their way
    CUT = "cut"  # a connection is reset in the middle of an answer
    HALF_OPEN = "half open"  # connections that stay open and say nothing any more, for longer than a lease
    DELAY = "delay"  # every piece on a way comes late


ON_THE_WIRE = (FaultKind.CORRUPT_CHUNK, FaultKind.CUT, FaultKind.HALF_OPEN, FaultKind.DELAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing to do."""

    kind: FaultKind
    target: str  # a role; of faults on the wire, a route of the proxy (`to_coordinator`, `weights_of`)
    after_step: int  # done once the run has trained so many steps
    wait_s: float  # and then after so long
    seconds: float  # how long it lasts, of those that last


def to_coordinator(role: str) -> str:
    """The route by which a role reaches the coordinator."""
    return f"{role} to coordinator"


def weights_of(role: str) -> str:
    """The route by which others fetch weights from a role."""
    return f"weights of {role}"


def sampler_names(samplers: int) -> list[str]:
    return [f"sampler-{index}" for index in range(samplers)]


def schedule(seed: int, faults: int, *, steps: int, samplers: int, lease_s: float, kinds: Sequence[FaultKind]) -> list[Fault]:
    """So many faults over a run of so many steps. Every kind, and of each kind every target, comes once before any comes again."""
    rng = random.Random(seed)
    workers = [LEARNER, *sampler_names(samplers)]
    ways = [*map(to_coordinator, workers), weights_of(LEARNER)]
    everybody = [COORDINATOR, *workers]
    targets = dict.fromkeys(ON_THE_WIRE, ways) | {
        FaultKind.KILL: everybody,
        FaultKind.FREEZE: everybody,
        FaultKind.TORN_JOURNAL: [COORDINATOR],
        FaultKind.FULL_DISK: ["run directory"],
        FaultKind.CORRUPT_CHUNK: [weights_of(LEARNER)],
    }
    decks: dict[str, list[str]] = {}

    def draw(name: str, cards: Sequence[str]) -> str:
        if not decks.get(name):
            decks[name] = rng.sample(cards, len(cards))
        return decks[name].pop()

    slot = max(1, (steps - 4) // max(1, faults))
    found: list[Fault] = []
    for number in range(faults):
        kind = FaultKind(draw("kinds", kinds))
        found.append(
            Fault(
                kind=kind,
                target=draw(kind, targets[kind]),
                after_step=1 + number * slot + rng.randrange(max(1, slot // 2)),
                wait_s=rng.uniform(0.0, 0.5),
                seconds=0.2 if kind is FaultKind.DELAY else lease_s * rng.uniform(1.2, 1.6),
            )
        )
    return found
