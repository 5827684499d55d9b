"""Where the samples are at this moment, for people: what the next batch lacks, and who works on it. Pure; see `telemetry.waits`."""

from collections import Counter

from slipstream.ledger.entries import TicketState
from slipstream.ledger.rules import EnvironmentOf, admitted, asked_for
from slipstream.ledger.state import LedgerState
from slipstream.telemetry.status import FlowStatus


def flow(state: LedgerState, environment_of: EnvironmentOf) -> FlowStatus:
    """Of a pinned batch its own tickets count; in flight whichever are whole first."""
    policy = state.policy
    live = dict(state.entries.live())
    wanted = set(asked_for(state, state.batched)) if policy.pinned else set(live)
    working = Counter(entry.worker for index, entry in live.items() if entry.state is TicketState.LEASED and index in wanted)
    whole = sum(entry.state is TicketState.GROUPED and index in wanted for index, entry in live.items())
    return FlowStatus(
        version=state.version,
        steps=policy.steps,
        eta=policy.eta,
        needed=len(wanted) if policy.pinned else policy.prompts_per_step,
        complete=whole,
        fixed=state.batched > state.version,
        leased=dict(working),
        claimable=sum(1 for _ in admitted(state, environment_of)),
        tickets=state.balance(),
    )
