"""The ledger's rules of a configuration. Needs no jax; called where a run is put together."""

from slipstream.config.schema import RunConfig
from slipstream.ledger.state import Policy as LedgerPolicy


def ledger_policy(config: RunConfig) -> LedgerPolicy:
    """The ledger's rules of a configuration."""
    return LedgerPolicy(
        prompts_per_step=config.batch.prompts_per_step,
        group_size=config.batch.group_size,
        eta=config.mode.eta,
        pinned=config.mode.kind != "inflight",
        steps=config.run.steps,
        refill=config.batch.refill,
        staleness=config.mode.staleness,
    )
