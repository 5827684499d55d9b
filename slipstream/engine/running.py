"""A request between its submission and its sample: what it has drawn so far. Called by the engine only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.records import FinishReason, Sample, SampleRequest
from slipstream.engine.plan import Outcome
from slipstream.engine.programs import Drawn


@dataclass(slots=True)
class Request:
    """A request that has not ended."""

    request: SampleRequest
    row: int = -1
    started_s: float | None = None  # when it was first computed on
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    raw_logprobs: list[float] | None = None  # kept for requests that truncate or bias
    versions: list[int] = field(default_factory=list[int])

    @classmethod
    def of(cls, request: SampleRequest, restricted: bool) -> "Request":
        """Before its first dispatch; with what was drawn for it elsewhere."""
        before = request.drawn
        return cls(
            request=request,
            tokens=before.completion_ids.tolist() if before else [],
            logprobs=before.logprobs.tolist() if before else [],
            raw_logprobs=[] if restricted else None,
            versions=before.versions.tolist() if before else [],
        )

    def take(self, drawn: "Arrived", place: int, version: int) -> Outcome:
        """Add what a dispatch with weights `version` drew for it, at its place there."""
        count = int(drawn.valid[:, place].sum())
        new = drawn.tokens[:count, place].tolist()
        self.tokens += new
        self.logprobs += drawn.logprobs[:count, place].tolist()
        self.versions += [version] * count
        if self.raw_logprobs is not None:
            self.raw_logprobs += drawn.raw_logprobs[:count, place].tolist()
        return Outcome(token_ids=tuple(new), ended=new[-1] in self.request.stop_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A dispatch that has been launched and not taken in."""

    version: int  # of its weights
    rows: Mapping[int, Request]  # that decode, in the order of their places in the dispatch
    drawn: Drawn

    def arrived(self) -> "Arrived":
        """What it drew. Waits for the device."""
        drawn = self.drawn
        return Arrived(
            tokens=np.asarray(drawn.token),
            logprobs=np.asarray(drawn.logprob),
            raw_logprobs=np.asarray(drawn.raw_logprob),
            valid=np.asarray(drawn.valid),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """`programs.Drawn` on the host, [steps, rows] each."""

    tokens: np.ndarray
    logprobs: np.ndarray
    raw_logprobs: np.ndarray
    valid: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that ended."""

    state: Request
    reason: FinishReason
    now_s: float

    def sample(self) -> Sample:
        state = self.state
        return Sample(
            key=state.request.key,
            completion_ids=np.array(state.tokens, np.int32),
            logprobs=np.array(state.logprobs, np.float32),
            versions=np.array(state.versions, np.int32),
            raw_logprobs=None if state.raw_logprobs is None else np.array(state.raw_logprobs, np.float32),
            finish_reason=self.reason,
            slot=state.row,
            started_s=self.now_s if state.started_s is None else state.started_s,
            finished_s=self.now_s,
        )
