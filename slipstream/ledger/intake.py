"""What a rollout must be before the ledger looks at it, and what the ledger sees of it. Pure; called by `Ledger.submit`.

Only what could be of no run is refused here. Late, doubled and outdated samples are ordinary, and get a receipt.
"""

import hashlib

import numpy as np

from slipstream.core.codec import CodecError, rollout_to_bytes
from slipstream.core.errors import RolloutRefused
from slipstream.core.ids import group_id, ticket_id
from slipstream.core.records import Partial, Rollout
from slipstream.ledger.rules import DATA_DIGITS, Arrival, pinned_version
from slipstream.ledger.state import LedgerState


def arrival(state: LedgerState, rollout: Rollout, run_id: str) -> tuple[Arrival, bytes]:
    """The rollout as the ledger sees it, and its bytes. Raises RolloutRefused. `run_id`: "" takes any."""
    name = f"rollout {rollout.ticket_id}/{rollout.sample_index}"
    index, sample = rollout.ticket_index, rollout.sample_index
    if run_id and rollout.run_id != run_id:
        raise RolloutRefused(f"{name}: run_id is {rollout.run_id!r}, and this is run {run_id!r}")
    if rollout.lineage != state.lineage:
        raise RolloutRefused(f"{name}: lineage is {rollout.lineage}, and the run is at {state.lineage}; join again and claim anew")
    if (rollout.ticket_id, rollout.group_id) != (ticket_id(index), group_id(index)) or not state.knows(index):
        raise RolloutRefused(f"{name} of group {rollout.group_id}: ticket_index is {index}, which nobody claimed under these names")
    if not 0 <= sample < state.policy.group_size:
        raise RolloutRefused(f"{name}: sample_index must be 0 to {state.policy.group_size - 1}")
    try:
        content = rollout_to_bytes(rollout)
    except CodecError as error:
        raise RolloutRefused(str(error)) from error
    oldest, newest = _check_tokens(name, state, rollout.completion_ids, rollout.logprobs, rollout.versions)
    outcome = rollout.outcome
    seen = Arrival(
        index=index,
        sample=sample,
        content=content_hash(content, rollout),
        oldest=oldest,
        newest=newest,
        tokens=len(rollout.completion_ids),
        reward=outcome.reward,
        outcome=outcome.kind.value,
    )
    return seen, content


def content_hash(content: bytes, rollout: Rollout) -> str:
    """Of what the sample says (its arrays stand last in its bytes); then of that and all else, so that every byte is hashed once."""
    head = len(content) - 4 * len(rollout.prompt_ids) - 13 * len(rollout.completion_ids)
    data = hashlib.blake2b(memoryview(content)[head:], digest_size=16)
    data.update(f"{rollout.outcome.kind} {rollout.outcome.reward}".encode())
    whole = hashlib.blake2b(memoryview(content)[:head], digest_size=16)
    whole.update(data.digest())
    return data.hexdigest()[:DATA_DIGITS] + whole.hexdigest()


def check_partial(state: LedgerState, partial: Partial) -> None:
    """Raises RolloutRefused for partial tokens that nobody could go on from."""
    name = f"partial {partial.ticket_index}/{partial.sample}"
    if not state.knows(partial.ticket_index):
        raise RolloutRefused(f"{name}: nobody claimed ticket {partial.ticket_index}")
    if not 0 <= partial.sample < state.policy.group_size:
        raise RolloutRefused(f"{name}: sample must be 0 to {state.policy.group_size - 1}")
    for field, dtype in (("completion_ids", np.int32), ("logprobs", np.float32), ("versions", np.int32)):
        array: np.ndarray = getattr(partial, field)
        if array.dtype != dtype or array.shape != (len(partial.completion_ids),):
            raise RolloutRefused(f"{name}: {field} is {array.dtype} {array.shape}, not {np.dtype(dtype)} ({len(partial.completion_ids)},)")
    _check_tokens(name, state, partial.completion_ids, partial.logprobs, partial.versions)
    if state.policy.pinned:
        version = pinned_version(state, partial.ticket_index)
        if (partial.versions != version).any():
            drawn = f"{partial.versions.min()} to {partial.versions.max()}"
            raise RolloutRefused(f"{name}: versions are {drawn}, and only {version} may draw it")


def _check_tokens(name: str, state: LedgerState, ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray) -> tuple[int, int]:
    """Some tokens, with finite log-probs, of versions that there can be (the learner publishes one before it is committed).

    The oldest and the newest version.
    """
    if not len(ids):
        raise RolloutRefused(f"{name} has no tokens; a sample has at least one")
    finite = np.isfinite(logprobs)
    if not finite.all():
        at = int(finite.argmin())
        raise RolloutRefused(f"{name}: the log-prob of token {at} is {logprobs[at]}, and every one must be a finite number")
    oldest, newest = int(versions.min()), int(versions.max())
    if oldest < 0 or newest > state.version + 1:
        raise RolloutRefused(f"{name}: versions are {oldest} to {newest}, and there are 0 to {state.version + 1}")
    return oldest, newest
