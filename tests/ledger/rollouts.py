"""Rollouts and prompts by number, small and exact, for tests of the ledger as an actor."""

from collections.abc import Sequence

import numpy as np

from slipstream.core.records import FinishReason, Outcome, OutcomeKind, Prompt, Rollout, Ticket


class NumberedPrompts:
    """Prompt i is the token i."""

    def prompt(self, index: int) -> Prompt:
        return Prompt(id=f"p{index}", token_ids=np.array([index], np.int32), text=f"{index}=", answer=f"{index}")


JUDGED = Outcome(kind=OutcomeKind.VALUE, reward=1.0)
WRONG = Outcome(kind=OutcomeKind.WRONG, reward=0.0)
TIMEOUT = Outcome(kind=OutcomeKind.TIMEOUT, reward=None)


def make_rollout(
    ticket: Ticket, sample: int, versions: Sequence[int], outcome: Outcome = JUDGED, sampler: str = "sampler-0", lineage: int = 0
) -> Rollout:
    """One completion token for each version."""
    tokens = len(versions)
    return Rollout(
        run_id="run",
        lineage=lineage,
        ticket_id=ticket.id,
        ticket_index=ticket.index,
        prompt_id=ticket.prompt.id,
        group_id=ticket.group_id,
        sample_index=sample,
        seed=1_000 * ticket.index + sample,
        prompt_ids=ticket.prompt.token_ids,
        completion_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5 - sample, np.float32),
        versions=np.array(versions, np.int32),
        loss_mask=np.ones(tokens, bool),
        finish_reason=FinishReason.STOP,
        outcome=outcome,
        prompt_text=ticket.prompt.text,
        completion_text="x" * tokens,
        answer=ticket.prompt.answer,
        sampler_id=sampler,
        sampler_class="cpu/float32",
        weight_digest="",
        slot=0,
        claimed_s=0.0,
        started_s=0.0,
        finished_s=0.0,
    )
