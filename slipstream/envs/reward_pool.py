"""A user's reward function in worker processes with a hard deadline: one that hangs or dies harms nobody but its own sample.

Rows go there as JSON: what JSON has no form for (a date of a Parquet file) arrives as text.
"""

import functools
import json
import threading
import weakref
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.datasets import Fields
from slipstream.envs.reward_function import RewardFunction, find_reward, score
from slipstream.envs.verifiers.pool import Ending, Pool

MEMORY_BYTES = 1 << 37  # of address space: functions may bring large libraries and models
_find = functools.cache(find_reward)


class OpenRewards:
    """Opened with the first row, by whatever thread brings it, and closed when nobody holds this any more."""

    def __init__(self, address: str, seconds: float, workers: int) -> None:
        self._address, self._seconds, self._workers = address, seconds, workers
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._pool: Pool | None = None
        self.close = weakref.finalize(self, self._stack.close)  # also runs at the end of the interpreter

    def score(self, fields: Fields, response: str) -> Outcome:
        """The outcome of one call. `timeout` past the deadline; `infrastructure` where it raises, gives no number, or its process dies."""
        row = json.loads(json.dumps(dict(fields), default=str))
        reply = self._opened().run({"address": self._address, "row": row, "response": response}, self._seconds)
        if reply.ending is Ending.DONE:
            return Outcome(**{**reply.value, "kind": OutcomeKind(reply.value["kind"])})
        kind = OutcomeKind.TIMEOUT if reply.ending is Ending.TIMEOUT else OutcomeKind.INFRASTRUCTURE
        return Outcome(kind=kind, reward=None, detail=f"the reward function: {reply.detail}"[:300])

    def _opened(self) -> Pool:
        with self._lock:
            if self._pool is None:
                target = f"{score_job.__module__}:{score_job.__name__}"
                self._pool = self._stack.enter_context(Pool(target, workers=self._workers, memory_bytes=MEMORY_BYTES))
            return self._pool


def score_job(payload: dict[str, Any]) -> dict[str, Any]:
    """`score` for a pool: {address, row, response} to the outcome's fields."""
    function: RewardFunction = _find(payload["address"])
    return asdict(score(function, payload["row"], payload["response"]))
