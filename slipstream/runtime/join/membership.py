"""Joining a run: the first call of every role, and again whenever its lease has ended. Called by `runtime.processes`."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.core.errors import UsageError
from slipstream.runtime.coordinator.messages import Join, Joined
from slipstream.runtime.join.caller import Answer, Caller, Refused

Head = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """Who wants to join."""

    kind: Literal["sampler", "learner", "grader"]
    incarnation: str  # a name for life: the same again is the same worker, one epoch later
    capabilities: Mapping[str, str]


class Seat:
    """A worker's place in a run, and its calls. Thread-safe; `rejoin` gives it a new epoch."""

    def __init__(self, caller: Caller, applicant: Applicant) -> None:
        self.caller = caller
        self._applicant = applicant
        self._lock = threading.Lock()
        self.joined = self._join(None)

    @property
    def head(self) -> Head:
        """What every call carries."""
        joined = self.joined
        return {"run_id": joined.run_id, "worker": joined.worker, "epoch": joined.epoch}

    def rejoin(self, ended: int) -> Joined:
        """A new epoch in the same run after `ended`, unless another thread has it already. Raises UsageError for another run."""
        with self._lock:
            if self.joined.epoch == ended:
                self.joined = self._join(self.joined.run_id)
        return self.joined

    def call(self, name: str, fields: Mapping[str, Any] | None = None, **options: Any) -> Answer:
        """POST a head of this worker with `fields`. Raises as `Caller.post`."""
        return self.caller.post(name, json.dumps({**self.head, **(fields or {})}).encode(), **options)

    def leave(self, patience_s: float) -> None:
        """Give everything back. Raises as `Caller.post`."""
        self.call("leave", patience_s=patience_s)

    def _join(self, run_id: str | None) -> Joined:
        one = self._applicant
        message = Join(kind=one.kind, incarnation=one.incarnation, capabilities=dict(one.capabilities), run_id=run_id)
        try:
            return Joined.model_validate_json(self.caller.post("join", message.model_dump_json().encode()).body)
        except Refused as refused:
            raise UsageError(str(refused)) from refused
