"""The ledger alone, as fast as one thread can call it: tickets a second by group size with the share of each part, and restarts."""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.clock import SystemClock
from slipstream.core.records import FinishReason, Outcome, OutcomeKind, Prompt, Rollout, Ticket
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy

COMPLETION_TOKENS = 64
TICKETS_A_CLAIM = SAMPLES_A_MESSAGE = 16
KEPT_STEPS = 20  # between two checkpoints; older batches are forgotten
RIGHT, WRONG = (Outcome(kind=kind, reward=reward) for kind, reward in ((OutcomeKind.VALUE, 1.0), (OutcomeKind.WRONG, 0.0)))


class NumberedPrompts:
    """Prompt i is the token i, sixteen times."""

    def prompt(self, index: int) -> Prompt:
        return Prompt(id=f"p{index}", token_ids=np.full(16, index, np.int32), text=f"{index}", answer=f"{index}")


def drawn(ticket: Ticket, sample: int, version: int, run_id: str = "bench", lineage: int = 0, tokens: int = COMPLETION_TOKENS) -> Rollout:
    """A finished sample."""
    return Rollout(
        run_id=run_id,
        lineage=lineage,
        ticket_id=ticket.id,
        ticket_index=ticket.index,
        prompt_id=ticket.prompt.id,
        group_id=ticket.group_id,
        sample_index=sample,
        seed=sample,
        prompt_ids=ticket.prompt.token_ids,
        completion_ids=np.zeros(tokens, np.int32),
        logprobs=np.full(tokens, -0.5, np.float32),
        versions=np.full(tokens, version, np.int32),
        loss_mask=np.ones(tokens, bool),
        finish_reason=FinishReason.STOP,
        outcome=RIGHT if sample % 2 else WRONG,
        prompt_text=ticket.prompt.text,
        completion_text="",
        answer=ticket.prompt.answer,
        sampler_id="sampler-0",
        sampler_class="cpu/float32",
        weight_digest="",
        slot=0,
        claimed_s=0.0,
        started_s=0.0,
        finished_s=0.0,
    )


def speed(path: Path, tickets: int, group_size: int, prompts_per_step: int) -> dict[str, Any]:
    """All steps of a run. Messages are as workers send them: 16 tickets a claim, 16 or more samples handed in together.

    By the clock on the wall, and by this process's own time on a core: the former is what other programs and the disk leave of the latter.
    """
    steps = max(1, tickets // prompts_per_step)
    ledger = Ledger(path, _policy(prompts_per_step, group_size, steps), NumberedPrompts(), SystemClock())
    core = time.process_time()
    seconds = run_steps(ledger, steps)
    core = time.process_time() - core - seconds.pop("making samples")
    ledger.close()
    total = sum(seconds.values())
    shares = {name: round(part / total, 3) for name, part in seconds.items()}
    done = steps * prompts_per_step
    return {
        "group_size": group_size,
        "tickets": done,
        "tickets_per_second": round(done / total, 1),
        "tickets_per_core_second": round(done / core, 1),
        "samples_per_second": round(done * group_size / total, 1),
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "shares_of_time": shares,
    }


def run_steps(ledger: Ledger, steps: int) -> dict[str, float]:
    """Seconds by call on the wall; and on a core for making the samples, which is the workers' work."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tickets_a_message = -(-SAMPLES_A_MESSAGE // ledger.state.policy.group_size)

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = call()
        seconds[name] += time.perf_counter() - started
        return result

    for step in range(steps):
        left = ledger.state.policy.prompts_per_step
        while left:
            claimed: list[Ticket] = timed("claim", lambda left=left, step=step: ledger.claim("sampler-0", min(left, TICKETS_A_CLAIM), step))
            left -= len(claimed)
            for first in range(0, len(claimed), tickets_a_message):
                core = time.process_time()
                rollouts = [drawn(one, sample, step) for one in claimed[first : first + tickets_a_message] for sample in one.samples]
                seconds["making samples"] += time.process_time() - core
                timed("submit", lambda rollouts=rollouts: ledger.submit(rollouts))
        timed("batch", lambda step=step: ledger.batch(step))
        timed("commit", lambda step=step: ledger.commit(step))
        if step % KEPT_STEPS == 0:
            timed("forget", lambda step=step: ledger.forget_before(max(0, step - KEPT_STEPS)))
    return dict(seconds)


def restarts(path: Path, tickets: int, prompts_per_step: int) -> dict[str, Any]:
    """Opening a journal of so many tickets, of which none is forgotten and so all are in the state: played whole, and from a snapshot."""
    steps = tickets // prompts_per_step
    policy = _policy(prompts_per_step, 1, steps)
    ledger = Ledger(path, policy, NumberedPrompts(), SystemClock(), snapshot_events=10**9)
    started, core = time.perf_counter(), time.process_time()
    for step in range(steps):
        ledger.submit([drawn(ticket, 0, step, tokens=1) for ticket in ledger.claim("sampler-0", prompts_per_step, step)])
        ledger.batch(step)
        ledger.commit(step)
    built_s, built_core_s = time.perf_counter() - started, time.process_time() - core
    ledger.close()
    tickets = steps * prompts_per_step
    return {
        "tickets": tickets,
        "tickets_per_second_in_one_state": round(tickets / built_s, 1),
        "tickets_per_core_second_in_one_state": round(tickets / built_core_s, 1),
        **_opened(path, policy, "whole_journal", lambda one: one.save_snapshot()),
        **_opened(path, policy, "from_snapshot", lambda one: None),
    }


def _opened(path: Path, policy: Policy, name: str, then: Callable[[Ledger], None]) -> dict[str, float]:
    """Seconds until the ledger is there, by the clock and on a core."""
    started, core = time.perf_counter(), time.process_time()
    ledger = Ledger(path, policy, NumberedPrompts(), SystemClock(), snapshot_events=10**9)
    found = {f"{name}_s": round(time.perf_counter() - started, 3), f"{name}_core_s": round(time.process_time() - core, 3)}
    then(ledger)
    ledger.close()
    return found


def _policy(prompts_per_step: int, group_size: int, steps: int) -> Policy:
    return Policy(prompts_per_step=prompts_per_step, group_size=group_size, eta=1, pinned=False, steps=steps)
