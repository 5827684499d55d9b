"""How the request in each row draws, as small arrays that are sent with every dispatch. Called by the engine only."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from slipstream.core.records import SampleRequest
from slipstream.engine.requests import BIASES, STOPS
from slipstream.engine.sampling import UNUSED, SamplingRows


class SamplingTable:
    """Mutable at any time: a dispatch gets copies. A free slot has no wishes, so that it costs nothing; one more is always free."""

    def __init__(self, slots: int, known_tokens: int) -> None:
        self._known, self._free = known_tokens, slots
        slots += 1
        self._key = np.zeros((slots, 2), np.uint32)
        self._temperature = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int32)
        self._top_p = np.ones(slots, np.float32)
        self._min_p = np.zeros(slots, np.float32)
        self._stop_ids = np.full((slots, STOPS), UNUSED, np.int32)
        self._first_stop = np.zeros(slots, np.int32)
        self._bias_ids = np.full((slots, BIASES), UNUSED, np.int32)
        self._bias = np.zeros((slots, BIASES), np.float32)

    def seat(self, slot: int, request: SampleRequest) -> None:
        """A request that `check_request` accepts takes the slot."""
        self.free(slot)
        stops, prompt = sorted(set(request.stop_ids)), len(request.prompt_ids)
        self._key[slot] = (request.seed & 0xFFFFFFFF, request.seed >> 32)
        self._temperature[slot] = request.temperature
        self._top_k[slot] = request.top_k if 0 < request.top_k < self._known else 0
        self._top_p[slot] = request.top_p
        self._min_p[slot] = request.min_p
        self._stop_ids[slot, : len(stops)] = stops
        self._first_stop[slot] = prompt + request.min_new_tokens if stops and request.min_new_tokens else 0
        for place, (token, bias) in enumerate(request.logit_bias):
            self._bias_ids[slot, place], self._bias[slot, place] = token, bias

    def free(self, slot: int) -> None:
        self._temperature[slot], self._top_k[slot], self._top_p[slot], self._min_p[slot] = 1.0, 0, 1.0, 0.0
        self._stop_ids[slot] = self._bias_ids[slot] = UNUSED
        self._first_stop[slot] = 0

    def rows(self, slots: Sequence[int], count: int) -> SamplingRows:
        """These slots in this order, filled up to `count` with free ones, as the device wants them.

        `jnp.array` copies; what takes a numpy buffer as it is would read it while the dispatch runs.
        """
        chosen = np.full(count, self._free)
        chosen[: len(slots)] = slots
        return SamplingRows(
            key=jnp.array(self._key[chosen]),
            temperature=jnp.array(self._temperature[chosen]),
            top_k=jnp.array(self._top_k[chosen]),
            top_p=jnp.array(self._top_p[chosen]),
            min_p=jnp.array(self._min_p[chosen]),
            stop_ids=jnp.array(self._stop_ids[chosen]),
            first_stop=jnp.array(self._first_stop[chosen]),
            bias_ids=jnp.array(self._bias_ids[chosen]),
            bias=jnp.array(self._bias[chosen]),
        )
