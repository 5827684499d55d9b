"""Simulated samplers on a virtual clock against the real ledger with its journal: they join, renew, draw, die, freeze, come back."""

import heapq
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from slipstream.cli.bench.ledger_speed import NumberedPrompts, drawn
from slipstream.core.clock import ManualClock
from slipstream.core.errors import StaleEpoch
from slipstream.core.records import Membership, Progress, Receipt, Rollout
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy

GROUP_SIZE, ETA, STEPS = 4, 2, 3
SLOTS = 8  # samples that one sampler draws at once
DRAW_S = 20.0  # median time of a sample; lognormal, with a long tail
TAIL = 0.8
STEP_S = 10.0  # of the learner
DIES, FREEZES = 0.02, 0.02  # of all turns


class Fleet:
    """One run. A turn of a sampler is what it does between two renewals: hand in, renew, claim."""

    def __init__(self, path: Path, samplers: int, seed: int) -> None:
        self.random, self.clock = random.Random(seed), ManualClock()
        prompts = max(1, samplers * SLOTS // GROUP_SIZE // (1 + ETA))
        policy = Policy(prompts_per_step=prompts, group_size=GROUP_SIZE, eta=ETA, pinned=False, steps=STEPS)
        self.ledger = Ledger(path, policy, NumberedPrompts(), self.clock)
        self.due: list[tuple[float, int]] = [(self.random.random() * 10, number) for number in range(samplers)]  # turns, by time
        heapq.heapify(self.due)
        self.incarnations = [f"process {number}" for number in range(samplers)]
        self.members: list[Membership | None] = [None] * samplers
        self.drawing: list[list[tuple[float, Rollout]]] = [[] for _ in range(samplers)]  # with the time when each is done
        self.learner_free_s = 0.0
        self.trained: Counter[tuple[int, int]] = Counter()
        self.oldest_age = 0
        self.calls: Counter[str] = Counter()

    def run(self) -> None:
        """To the last step."""
        last_look_s = 0.0
        while self.ledger.state.version < STEPS:
            now_s, number = heapq.heappop(self.due)
            self.clock.advance(max(0.0, now_s - self.clock.now_s()))
            if now_s - last_look_s > 1.0:
                last_look_s = now_s
                self.calls["expired"] += len(self.ledger.expire())
                self._learn(now_s)
            heapq.heappush(self.due, (now_s + self._turn(number, now_s), number))

    def _turn(self, number: int, now_s: float) -> float:
        """Seconds to the sampler's next turn."""
        self._hand_in(number, now_s)
        chance = self.random.random()
        if chance < DIES:
            self.incarnations[number] += "'"
            self.members[number], self.drawing[number] = None, []
            return 30.0 * self.random.random()
        lease_s = self._renew(number, now_s)
        return lease_s * 3 if chance < DIES + FREEZES else lease_s / 3

    def _renew(self, number: int, now_s: float) -> float:
        """The lease time. One that froze learns here that it is out, and goes on drawing what it had for nobody."""
        try:
            member = self.members[number]
            if member is None:
                member = self.members[number] = self.ledger.join("sampler", self.incarnations[number], {})
            self.ledger.renew(member.worker, member.epoch, Progress())
            self._claim(number, member, now_s)
        except StaleEpoch:
            self.calls["fenced"] += 1
            member = self.members[number] = self.ledger.join("sampler", self.incarnations[number], {})
        self.calls["renewed"] += 1
        return member.lease_s

    def _claim(self, number: int, member: Membership, now_s: float) -> None:
        drawing, version = self.drawing[number], self.ledger.state.version
        free = (SLOTS - len(drawing)) // GROUP_SIZE
        if free <= 0:
            return
        holding = {rollout.ticket_index for _, rollout in drawing}
        for ticket in self.ledger.claim(member.worker, free, version, epoch=member.epoch, holding=holding):
            self.calls["claimed"] += 1
            for sample in ticket.samples:
                done_s = now_s + DRAW_S * self.random.lognormvariate(0.0, TAIL)
                drawing.append((done_s, drawn(ticket, sample, version, tokens=4)))

    def _hand_in(self, number: int, now_s: float) -> None:
        done = [rollout for done_s, rollout in self.drawing[number] if done_s <= now_s]
        if done:
            self.drawing[number] = [(done_s, rollout) for done_s, rollout in self.drawing[number] if done_s > now_s]
            self.calls.update(self.ledger.submit(done))

    def _learn(self, now_s: float) -> None:
        version = self.ledger.state.version
        batch = self.ledger.batch(version) if now_s >= self.learner_free_s else None
        if batch is not None:
            self.trained.update((rollout.ticket_index, rollout.sample_index) for rollout in batch.rollouts)
            self.oldest_age = max(self.oldest_age, *(version - rollout.age_version for rollout in batch.rollouts))
            self.ledger.commit(version)
            self.ledger.forget_before(version)
            self.learner_free_s = now_s + STEP_S

    def broken(self) -> list[str]:
        """Promises that did not hold."""
        counted, policy = self.ledger.counters(), self.ledger.state.policy
        tickets, samples = counted["tickets"], counted["samples"]
        found = {
            f"tickets do not sum up: {tickets}": tickets["issued"] == sum(tickets.values()) - tickets["issued"],
            f"samples do not sum up: {samples}": samples["issued"]
            == samples["batched"] + samples["live"] + sum(samples["dropped"].values()),
            "a sample was trained twice": max(self.trained.values(), default=1) == 1,
            f"{len(self.trained)} samples were trained": len(self.trained) == policy.planned * GROUP_SIZE,
            f"age {self.oldest_age} was trained": self.oldest_age <= ETA,
            f"receipts {counted['submissions']} were {self.calls}": all(counted["submissions"][one] == self.calls[one] for one in Receipt),
        }
        return [promise for promise, holds in found.items() if not holds]


def fleet(path: Path, samplers: int, seed: int) -> dict[str, Any]:
    """The run, its rate on this machine, and how much faster than its own clock it went."""
    made, core, started = Fleet(path, samplers, seed), time.process_time(), time.perf_counter()
    made.run()
    seconds, core = time.perf_counter() - started, time.process_time() - core
    events, counted = made.ledger.journal_length(), made.ledger.counters()
    broken = made.broken()
    made.ledger.close()
    return {
        "samplers": samplers,
        "virtual_s": round(made.clock.now_s(), 1),
        "seconds": round(seconds, 1),
        "core_seconds": round(core, 1),
        "events": events,
        "events_per_second": round(events / seconds, 1),
        "renewals": made.calls["renewed"],
        "leases_expired": made.calls["expired"],
        "submissions": counted["submissions"],
        "returned": counted["returned"],
        "broken": broken,
    }
