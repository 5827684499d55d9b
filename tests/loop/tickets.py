"""Tickets by number, for tests without a ledger."""

from slipstream.core.ids import group_id, ticket_id
from slipstream.core.records import Ticket
from tests.ledger.rollouts import NumberedPrompts


def ticket(index: int, samples: int = 2) -> Ticket:
    """The ticket that a ledger would make."""
    return Ticket(
        id=ticket_id(index),
        index=index,
        group_id=group_id(index),
        prompt=NumberedPrompts().prompt(index),
        samples=tuple(range(samples)),
        version_floor=0,
        version_pinned=None,
    )
