"""The ledger's counters for people and /metrics. Pure. Every draw is accounted for: issued = batched + dropped + live, always."""

from collections import Counter
from typing import Any

from slipstream.core.records import Receipt
from slipstream.ledger.state import LedgerState


def counters(state: LedgerState) -> dict[str, Any]:
    """Tickets by state; samples and submissions by what became of them; tickets that came back by reason; workers here by kind.

    `samples.issued` counts draws: a sample that is drawn anew is issued again. `lengths` shows what the staleness policy does to long
    samples: mean completion tokens of those in batches, and of those let go with groups grown too old (None where there are none).
    """
    live = sum(state.policy.group_size - len(entry.dropped) for _, entry in state.entries.live())
    return {
        "term": state.term,
        "lineage": state.lineage,
        "version": state.version,
        "batched": state.batched,
        "tickets": {"issued": state.issued, **state.balance()},
        "samples": {
            "issued": state.issued * state.policy.group_size + state.redrawn,
            "batched": state.batched_samples,
            "live": live,
            "dropped": dict(state.samples_dropped),
        },
        "submissions": {receipt.value: state.receipts.get(receipt, 0) for receipt in Receipt},
        "returned": dict(state.returned),
        "requeued": state.requeued,
        "lengths": {
            "batched": _mean(state.batched_tokens, state.batched_samples),
            "stale": _mean(state.stale_tokens, state.stale_samples),
            "stale_samples": state.stale_samples,
        },
        "workers": dict(Counter(worker.kind for worker in state.workers.values() if worker.here)),
    }


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None
