"""What the ledger cannot know of a rollout from outside: that it fits the prompt and the model. Pure; called by `coordinator.desk`."""

from dataclasses import dataclass

import numpy as np

from slipstream.core.ports import PromptStream
from slipstream.core.records import Rollout
from slipstream.runtime.coordinator.messages import MessageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What every rollout of a run keeps to."""

    prompts: PromptStream
    max_new_tokens: int
    tokens: int  # token ids are below it
    ratio_band: float = 0.03  # trust.ratio_band
    ratio_tokens: int = 1000  # trust.ratio_tokens
    agents_prompt_tokens: int | None = None  # where agents make the prompts: tokens of the longest they may; None: prompts are the stream's


def check_rollout(rollout: Rollout, bounds: Bounds) -> None:
    """Raises MessageError that names the rollout, the field and what it should be. The ledger's own checks come after."""
    name, ids = f"rollout {rollout.ticket_id}/{rollout.sample_index}", rollout.completion_ids
    if not 1 <= len(ids) <= bounds.max_new_tokens:
        raise MessageError(f"{name}: {len(ids)} tokens; sampling.max_new_tokens allows 1 to {bounds.max_new_tokens}")
    if ids.min() < 0 or ids.max() >= bounds.tokens:
        raise MessageError(f"{name}: token ids are {ids.min()} to {ids.max()}; the model has 0 to {bounds.tokens - 1}")
    if rollout.ticket_index < 0:
        raise MessageError(f"{name}: ticket_index is {rollout.ticket_index}")
    prompt = bounds.prompts.prompt(rollout.ticket_index)
    if bounds.agents_prompt_tokens is not None:
        asked = rollout.prompt_ids
        known = 1 <= len(asked) <= bounds.agents_prompt_tokens and asked.min() >= 0 and asked.max() < bounds.tokens
    else:
        known = np.array_equal(rollout.prompt_ids, prompt.token_ids)
    if rollout.prompt_id != prompt.id or not known:
        raise MessageError(f"{name}: prompt {rollout.prompt_id} is not that of ticket {rollout.ticket_index}, {prompt.id}")
