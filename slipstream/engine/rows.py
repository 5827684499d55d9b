"""The host's side of the slots: what each is doing, as small arrays that are sent with every dispatch. Called by the engine only."""

import jax.numpy as jnp
import numpy as np

from slipstream.core.records import SampleRequest
from slipstream.engine.decode import Rows


class SlotTable:
    """Mutable; changed only while no dispatch is in flight, because the device may read these very buffers."""

    def __init__(self, slots: int) -> None:
        self._token = np.zeros(slots, np.int32)
        self._position = np.zeros(slots, np.int32)
        self._last_position = np.zeros(slots, np.int32)
        self._active = np.zeros(slots, bool)
        self._key = np.zeros((slots, 2), np.uint32)
        self._temperature = np.ones(slots, np.float32)

    def seat(self, slot: int, request: SampleRequest) -> None:
        """A request takes the slot: its prompt's last token is decoded first."""
        last = len(request.prompt_ids) - 1
        self._token[slot] = request.prompt_ids[last]
        self._position[slot] = last
        self._last_position[slot] = last + request.max_new_tokens
        self._active[slot] = True
        self._key[slot] = (request.seed & 0xFFFFFFFF, request.seed >> 32)
        self._temperature[slot] = request.temperature

    def advance(self, slot: int, newest_token: int, count: int) -> None:
        """`count` tokens were drawn, the last of them `newest_token`."""
        self._token[slot] = newest_token
        self._position[slot] += count

    def free(self, slot: int) -> None:
        self._active[slot] = False

    def rows(self) -> Rows:
        """As the device wants them."""
        return Rows(
            token=jnp.asarray(self._token),
            position=jnp.asarray(self._position),
            last_position=jnp.asarray(self._last_position),
            active=jnp.asarray(self._active),
            key=jnp.asarray(self._key),
            temperature=jnp.asarray(self._temperature),
        )
