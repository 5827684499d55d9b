"""The engine: an actor that keeps its rows full. Implements `core.ports.Sampler`; called by one thread only.

`step` makes one dispatch of what the scheduler plans: copies of pages, chunks of prompts, a few decode steps in every row; and
returns the samples that ended. New weights take effect between two dispatches; each token remembers the version that drew it.
"""

from dataclasses import dataclass, field
from typing import Literal

import jax
import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.engine.plan import Decoding, Outcome, Plan, RequestKey
from slipstream.engine.programs import copy_pages, decode, prefill
from slipstream.engine.requests import check_request, restricts
from slipstream.engine.rows import SamplingTable
from slipstream.engine.scheduler import Scheduler, State
from slipstream.engine.units import Shapes, copy_arguments, decode_rows, prefill_calls
from slipstream.models.decoder import empty_pages
from slipstream.models.numerics import EXACT, FAST, Numerics, barriers_hold
from slipstream.models.parameters import Params, unstack
from slipstream.models.quant import COMPUTE, at_precision
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision

PREFILL_TOKENS = 128  # of one prefill call; fixed, so that shapes (and bits) never depend on load


@dataclass(slots=True)
class _Request:
    """A request that has not ended, and what it has drawn so far."""

    request: SampleRequest
    row: int = -1
    started_s: float | None = None  # when it was first computed on
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] | None = None  # kept for requests that truncate or bias
    versions: list[int] = field(default_factory=list)


class Engine:
    """A batched sampler on one device.

    `max_tokens` bounds prompt plus completion. `pages` of `page_tokens` positions hold keys and values (default: enough for every
    row's longest sequence); where they run out, the latest sequences give theirs up and are computed again. `exact` makes every
    log-prob the learner's to the bit. `on_swap` says what becomes of keys and values of older weights. `load` comes before the
    first `step`. Raises ValueError for a request that cannot fit or be drawn, RunFailed where exactness cannot be had.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        id: str,
        clock: Clock,
        slots: int,
        max_tokens: int,
        tokens_per_dispatch: int,
        precision: Precision = "f32",
        exact: bool = False,
        page_tokens: int = 64,
        pages: int | None = None,
        on_swap: Literal["keep", "recompute"] = "keep",
    ) -> None:
        self.id = id
        self.sampler_class = f"{jax.default_backend()}/{precision}" + ("/exact" if exact else "")
        self._spec, self._clock, self._slots, self._max_tokens = spec, clock, slots, max_tokens
        self._precision: Precision = precision
        self._numerics: Numerics = EXACT if exact else FAST
        if exact and not barriers_hold():
            raise RunFailed("exact mode: this compiler does not keep barriers between operations; use numerics = fast")
        self._on_swap = on_swap
        self._known = spec.vocab if spec.known_tokens is None else spec.known_tokens
        if not exact:  # a page need not be longer than any sequence; in exact mode its length is part of the arithmetic
            page_tokens = min(page_tokens, 1 << (max_tokens - 1).bit_length())
        longest = -(-max_tokens // page_tokens)
        pages = slots * longest if pages is None else pages
        unit = min(self._numerics.query_tile, page_tokens)
        self._shapes = Shapes(
            rows=slots,
            units=max(1, PREFILL_TOKENS // unit),
            unit_tokens=unit,
            table_pages=longest,
            page_tokens=page_tokens,
            scratch=pages,
        )
        self._steps = tokens_per_dispatch
        self._scheduler = Scheduler(
            rows=slots, pages=pages, page_tokens=page_tokens, prefill_tokens=PREFILL_TOKENS, tokens_per_dispatch=tokens_per_dispatch
        )
        self._pages = empty_pages(spec, pages + 1, page_tokens, COMPUTE[precision])
        self._sampling = SamplingTable(slots, self._known)
        self._params: Params | None = None
        self._version = -1
        self._requests: dict[RequestKey, _Request] = {}

    @property
    def version(self) -> int:
        return self._version

    def waiting(self) -> int:
        return len(self._requests) - self.running()

    def running(self) -> int:
        counts = self._scheduler.counts()
        return counts[State.RUNNING] + counts[State.PREEMPTED]

    def free_slots(self) -> int:
        return max(0, self._slots - len(self._requests))

    def load(self, weights: WeightVersion) -> None:
        self._params = unstack(at_precision(weights.params, self._spec, self._precision))
        self._version = weights.version
        if self._on_swap == "recompute":
            self._scheduler.recompute_all()

    def submit(self, request: SampleRequest) -> None:
        check_request(request, vocabulary=self._spec.vocab, known=self._known, max_tokens=self._max_tokens)
        self._scheduler.submit(request.key, request.prompt_ids.tolist(), request.max_new_tokens)
        raw: list[float] | None = [] if restricts(request, self._known) else None
        self._requests[request.key] = _Request(request=request, raw_logprobs=raw)

    def abort(self, key: RequestKey) -> Sample | None:
        """End a request now; what it has drawn, or None where no such request is waiting or running."""
        if not self._scheduler.abort(key):
            return None
        return self._ended(self._requests[key], FinishReason.ABORTED, self._clock.now_s())

    def pause(self) -> None:
        """`step` does nothing until `resume`; requests keep their places and pages."""
        self._scheduler.pause()

    def resume(self) -> None:
        self._scheduler.resume()

    def drawn(self, key: RequestKey, start: int = 0) -> tuple[list[int], list[float], list[int]]:
        """Tokens, log-probs and versions from the `start`-th on that a request has drawn so far; for streaming."""
        state = self._requests.get(key)
        return (state.tokens[start:], state.logprobs[start:], state.versions[start:]) if state else ([], [], [])

    def step(self) -> list[Sample]:
        """One dispatch: up to `tokens_per_dispatch` tokens a row; what ended. Nothing to do: an empty list.

        Raises RunFailed when the weights give log-probs that are not finite: no sample of theirs means anything.
        """
        if self._params is None:
            raise RuntimeError(f"engine {self.id} has no weights; call load first")
        plan = self._prepared_plan(self._params)
        if plan is None:
            return []
        rows = decode_rows(plan.decode, self._sampling.rows(), self._shapes)
        self._pages, drawn = decode(self._params, self._spec, self._pages, rows, steps=self._steps, numerics=self._numerics)
        arrays = (np.asarray(array) for array in (drawn.token, drawn.logprob, drawn.raw_logprob, drawn.valid))
        return self._collect(plan.decode, *arrays)

    def _seat(self, plan: Plan) -> None:
        """Requests that are computed on for the first time take their rows."""
        now = self._clock.now_s()
        for one in (*plan.prefill, *plan.decode):
            state = self._requests[one.key]
            if state.started_s is None:
                state.row, state.started_s = one.row, now
                self._sampling.seat(one.row, state.request)

    def _prepared_plan(self, params: Params) -> Plan | None:
        """The next plan that decodes, its prompts prefilled; plans that only prefill are carried out on the way."""
        while (plan := self._scheduler.plan(self._version)) is not None:
            self._seat(plan)
            self._prepare(plan, params)
            if plan.decode:
                return plan
            self._scheduler.record({})
        return None

    def _prepare(self, plan: Plan, params: Params) -> None:
        for sources, targets in copy_arguments(plan.copies, self._shapes):
            self._pages = copy_pages(self._pages, sources, targets, numerics=self._numerics)
        for units in prefill_calls(plan.prefill, self._shapes):
            self._pages = prefill(params, self._spec, self._pages, units, numerics=self._numerics)

    def _collect(
        self, decoding: tuple[Decoding, ...], tokens: np.ndarray, logprobs: np.ndarray, raw_logprobs: np.ndarray, valid: np.ndarray
    ) -> list[Sample]:
        if not np.isfinite(logprobs[valid]).all():
            raise RunFailed(f"engine {self.id}: the weights of version {self._version} give log-probs that are not finite")
        now, outcomes, ended = self._clock.now_s(), {}, []
        for one in decoding:
            state, count = self._requests[one.key], int(valid[:, one.row].sum())
            new = tokens[:count, one.row].tolist()
            state.tokens += new
            state.logprobs += logprobs[:count, one.row].tolist()
            state.versions += [self._version] * count
            if state.raw_logprobs is not None:
                state.raw_logprobs += raw_logprobs[:count, one.row].tolist()
            stopped = new[-1] in state.request.stop_ids
            outcomes[one.row] = Outcome(token_ids=tuple(new), ended=stopped)
            if stopped or len(state.tokens) == state.request.max_new_tokens:
                ended.append((state, FinishReason.STOP if stopped else FinishReason.LENGTH))
        self._scheduler.record(outcomes)
        return [self._ended(state, reason, now) for state, reason in ended]

    def _ended(self, state: _Request, reason: FinishReason, now_s: float) -> Sample:
        del self._requests[state.request.key]
        if state.row >= 0:
            self._sampling.free(state.row)
        return Sample(
            key=state.request.key,
            completion_ids=np.array(state.tokens, np.int32),
            logprobs=np.array(state.logprobs, np.float32),
            versions=np.array(state.versions, np.int32),
            raw_logprobs=None if state.raw_logprobs is None else np.array(state.raw_logprobs, np.float32),
            finish_reason=reason,
            slot=state.row,
            started_s=now_s if state.started_s is None else state.started_s,
            finished_s=now_s,
        )
