"""Which waiting requests enter which free slots, and how their prompts are packed for prefill. Pure, no jax.

Prompts are grouped by padded length and by equality: a group's shared prompt is computed once. A prompt's padded length
depends on itself alone, so its keys and values have the same bits in any company.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.records import SampleRequest

SHORTEST_BUCKET = 16  # tokens; lengths double from here, so few programs are compiled


def bucket(tokens: int) -> int:
    """The padded length of a prompt of `tokens` tokens: the smallest power of two from 16 that holds it."""
    length = SHORTEST_BUCKET
    while length < tokens:
        length *= 2
    return length


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCall:
    """Arguments of one prefill dispatch."""

    token_ids: np.ndarray  # int32 [prompts_per_call, length]
    slots: np.ndarray  # int32 [slots]; unused entries lie beyond the last slot and are dropped
    sources: np.ndarray  # int32 [slots]; row of token_ids copied into the slot


def plan_prefill(admitted: Sequence[tuple[int, SampleRequest]], slot_count: int, prompts_per_call: int) -> list[PrefillCall]:
    """The prefill calls for (slot, request) pairs: distinct prompts in first-seen order, `prompts_per_call` a call."""
    by_prompt: dict[bytes, list[int]] = {}
    prompts: dict[bytes, np.ndarray] = {}
    for slot, request in admitted:
        ids = np.asarray(request.prompt_ids, np.int32)  # one width, so that equal bytes are equal prompts
        key = ids.tobytes()
        prompts.setdefault(key, ids)
        by_prompt.setdefault(key, []).append(slot)
    by_length: dict[int, list[bytes]] = {}
    for key, ids in prompts.items():
        by_length.setdefault(bucket(len(ids)), []).append(key)
    return [
        _call(keys[start : start + prompts_per_call], prompts, by_prompt, length, slot_count, prompts_per_call)
        for length, keys in sorted(by_length.items())
        for start in range(0, len(keys), prompts_per_call)
    ]


def _call(
    keys: Sequence[bytes], prompts: dict[bytes, np.ndarray], by_prompt: dict[bytes, list[int]], length: int, slot_count: int, rows: int
) -> PrefillCall:
    token_ids = np.zeros((rows, length), np.int32)
    slots = np.full(slot_count, slot_count, np.int32)
    sources = np.zeros(slot_count, np.int32)
    used = 0
    for row, key in enumerate(keys):
        token_ids[row, : len(prompts[key])] = prompts[key]
        for slot in by_prompt[key]:
            slots[used], sources[used] = slot, row
            used += 1
    return PrefillCall(token_ids=token_ids, slots=slots, sources=sources)
