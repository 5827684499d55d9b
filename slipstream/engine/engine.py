"""The engine: an actor that keeps its rows full. Implements `core.ports.Sampler`; called by one thread only.

`step` takes in what the dispatch in flight has drawn, launches the next (what the scheduler plans: copies of pages, chunks of
prompts, a few decode steps in every row) and returns the samples that ended: whatever the caller does with them, the device
works meanwhile. New weights take effect between two dispatches; each token remembers the version that drew it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Literal

import jax
import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.engine.divergence import PROBED, divergence
from slipstream.engine.plan import Chunk, Plan, RequestKey, Table
from slipstream.engine.programs import copy_pages, decode, prefill
from slipstream.engine.requests import check_request, restricts
from slipstream.engine.row_counts import row_counts, sound_counts
from slipstream.engine.rows import SamplingTable
from slipstream.engine.running import Ended, InFlight, Request
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.sequence import State
from slipstream.engine.units import Shapes, copy_arguments, decode_rows, prefill_calls
from slipstream.models.decoder import empty_pages
from slipstream.models.lora import Adapted, Policy, whole
from slipstream.models.numerics import EXACT, SAMPLING, Numerics, barriers_hold
from slipstream.models.panels import laid_out
from slipstream.models.quant import COMPUTE, arithmetic, at_precision
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision
from slipstream.telemetry.events import Events, NullEvents

OnSwap = Literal["keep", "recompute", "auto"]  # keys and values of older weights
PREFILL_TOKENS = 128  # of one prefill call; fixed, so that shapes (and bits) never depend on load
PREFILL_CALLS = 16  # at most, before each decode: rows that wait for their prompts cost as much in it as those that draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What became of the keys and values of older weights when new ones came."""

    version: int  # the new one
    kept: int  # running sequences that go on with theirs
    recomputed: int  # running sequences that are prefilled again
    divergence: float | None  # nats; see `engine.divergence`. None: not measured, or no number


class Engine:
    """A batched sampler on one device.

    `max_tokens` bounds prompt plus completion. `pages` of `page_tokens` positions hold keys and values (default: enough for every
    row's longest sequence); where they run out, the latest sequences give theirs up and are computed again. `exact` makes every
    log-prob the learner's to the bit. `on_swap` says what becomes of keys and values of older weights: kept, computed again, or
    (`auto`) computed again where the log-probs of a few sequences' next tokens differ by more than `divergence_limit` nats; each
    decision is an event `kv_swap`. `load` comes before the first `step`. Raises ValueError for a request that cannot fit or be
    drawn, RunFailed where exactness cannot be had.

    `keep_ended`: full pages of requests that have ended stay for those that begin alike, as the next turn of a conversation does,
    while nobody needs the room and the weights are the same. In fast numerics only pages of prefilled tokens, since a decoding row
    gives other last bits than a prefill. So no sample depends on what was kept.
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
        on_swap: OnSwap = "keep",
        divergence_limit: float = 0.05,
        keep_ended: bool = True,
        events: Events = NullEvents(),
    ) -> None:
        self.id = id
        self.sampler_class = arithmetic(precision, exact)
        self._spec, self._clock, self._slots, self._max_tokens = spec, clock, slots, max_tokens
        self._precision: Precision = precision
        self._numerics: Numerics = EXACT if exact else SAMPLING
        if exact and not barriers_hold():
            raise RunFailed("exact mode: this compiler does not keep barriers between operations; use numerics = fast")
        self._on_swap: OnSwap = on_swap
        self._swap_now: OnSwap = on_swap
        self._divergence_limit, self._events = divergence_limit, events
        self._known = spec.vocab if spec.known_tokens is None else spec.known_tokens
        if not exact:  # a page need not be longer than any sequence; in exact mode its length is part of the arithmetic
            page_tokens = min(page_tokens, 1 << (max_tokens - 1).bit_length())
        longest = -(-max_tokens // page_tokens)
        pages = slots * longest if pages is None else pages
        probed = min(PROBED, slots) if on_swap == "auto" else 0
        self._probe_tables: list[Table] = [tuple(range(pages + one * longest, pages + (one + 1) * longest)) for one in range(probed)]
        scratch = pages + probed * longest
        unit = min(self._numerics.query_tile, page_tokens)
        self._shapes = Shapes(
            rows=slots,
            units=max(1, PREFILL_TOKENS // unit),
            unit_tokens=unit,
            table_pages=longest,
            page_tokens=page_tokens,
            scratch=scratch,
        )
        self._steps = tokens_per_dispatch
        self._scheduler = Scheduler(
            rows=slots,
            pages=pages,
            page_tokens=page_tokens,
            prefill_tokens=PREFILL_CALLS * PREFILL_TOKENS,
            tokens_per_dispatch=tokens_per_dispatch,
            keep=("all" if exact else "prefilled") if keep_ended else "nothing",
        )
        self._pages = empty_pages(spec, scratch + 1, page_tokens, COMPUTE[precision])
        self._sampling = SamplingTable(slots, self._known)
        self._row_counts: tuple[int, ...] = ()  # of decode programs, ascending; known when the first dispatch is
        self._params: Policy | None = None
        self._version = -1
        self._requests: dict[RequestKey, Request] = {}
        self._in_flight: InFlight | None = None
        self._swapped = False  # since the last launch
        self.last_swap: Swap | None = None  # that met running sequences

    @property
    def version(self) -> int:
        """Of the weights of the next dispatch; one in flight goes on with those it was launched with."""
        return self._version

    @property
    def prefilled_tokens(self) -> int:
        """Tokens of prompts computed so far, those computed again included."""
        return self._scheduler.prefilled_tokens

    @property
    def reused_tokens(self) -> int:
        """Tokens of prompts found in pages of ended requests so far, and not computed."""
        return self._scheduler.reused_tokens

    def waiting(self) -> int:
        return len(self._requests) - self.running()

    def running(self) -> int:
        counts = self._scheduler.counts()
        return counts[State.RUNNING] + counts[State.PREEMPTED]

    def free_slots(self) -> int:
        return max(0, self._slots - len(self._requests))

    def load(self, weights: WeightVersion, on_swap: OnSwap | None = None) -> None:
        """`on_swap`: what becomes of keys and values this time; None: as the engine does."""
        self._swap_now = on_swap or self._on_swap
        self._params = self._prepared(weights.params)
        self._version = weights.version
        self._swapped = True

    def warm_up(self) -> tuple[str, ...]:
        """Compile every program of this engine, by running it on the scratch page; their names and shapes. After the first `load`."""
        shapes, params = self._shapes, self._weights()
        nothing = Chunk(key=("warm-up", 0), row=0, start=0, token_ids=(0,), table=(shapes.scratch,) * shapes.table_pages)
        self._settle_row_counts(params)
        self._prepare([(shapes.scratch, shapes.scratch)], [nothing], params)
        for count in self._row_counts:
            rows = decode_rows((), self._sampling.rows((), count), shapes)
            self._pages, _ = decode(params, self._spec, self._pages, rows, steps=self._steps, numerics=self._numerics)
        jax.block_until_ready(self._pages)
        tables = f"tables of {shapes.table_pages} pages of {shapes.page_tokens} tokens"
        return (
            f"copy_pages: {shapes.rows} pages",
            f"prefill: {shapes.units} units of {shapes.unit_tokens} tokens, {tables}",
            *(f"decode: {count} rows, up to {self._steps} tokens each, {tables}" for count in self._row_counts),
        )

    def submit(self, request: SampleRequest) -> None:
        check_request(request, vocabulary=self._spec.vocab, known=self._known, max_tokens=self._max_tokens)
        state = Request.of(request, restricted=restricts(request, self._known))
        self._scheduler.submit(request.key, [*request.prompt_ids.tolist(), *state.tokens], request.max_new_tokens - len(state.tokens))
        self._requests[request.key] = state

    def abort(self, key: RequestKey) -> Sample | None:
        """End a request now; what it has drawn, or None where no such request is waiting or running.

        What a dispatch in flight draws for it is lost.
        """
        if not self._scheduler.abort(key):
            return None
        return self._end(self._requests[key], FinishReason.ABORTED, self._clock.now_s()).sample()

    def pause(self) -> None:
        """`step` launches nothing until `resume`; requests keep their places and pages."""
        self._scheduler.pause()

    def resume(self) -> None:
        self._scheduler.resume()

    def drawn(self, key: RequestKey, start: int = 0) -> tuple[list[int], list[float], list[int]]:
        """Tokens, log-probs and versions from the `start`-th on that a request has drawn so far; for streaming."""
        state = self._requests.get(key)
        return (state.tokens[start:], state.logprobs[start:], state.versions[start:]) if state else ([], [], [])

    def drawing(self, key: RequestKey) -> int:
        """Most tokens that the dispatch in flight draws for a request."""
        state = self._requests.get(key)
        if state is None or self._in_flight is None or state.row not in self._in_flight.rows:
            return 0
        return min(self._steps, state.request.max_new_tokens - len(state.tokens))

    def step(self) -> list[Sample]:
        """Wait for the dispatch in flight, launch the next, return what ended. Nothing to do: an empty list.

        A dispatch draws up to `tokens_per_dispatch` tokens a row. Raises RunFailed when the weights give log-probs that are not
        finite: no sample of theirs means anything.
        """
        params = self._weights()
        ended = self._collect()
        self._launch(params)
        return [one.sample() for one in ended]

    def _prepared(self, policy: Policy) -> Policy:
        """In the engine's precision, layer by layer. Adapters are merged in, but in exact mode applied as the learner does."""
        if isinstance(policy, Adapted) and self._numerics.exact:
            return replace(policy, base=laid_out(at_precision(policy.base, self._spec, self._precision), self._spec))
        return laid_out(at_precision(whole(policy), self._spec, self._precision), self._spec)

    def _weights(self) -> Policy:
        if self._params is None:
            raise RuntimeError(f"engine {self.id} has no weights; call load first")
        return self._params

    def _collect(self) -> list[Ended]:
        """Take in what the dispatch in flight has drawn, waiting for it. What was aborted meanwhile is passed over."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return []
        drawn = flight.arrived()
        if not np.isfinite(drawn.logprobs[drawn.valid]).all():
            raise RunFailed(f"engine {self.id}: the weights of version {flight.version} give log-probs that are not finite")
        now, outcomes, ended = self._clock.now_s(), {}, []
        for place, (row, state) in enumerate(flight.rows.items()):
            if self._requests.get(state.request.key) is not state:
                continue
            outcomes[row] = state.take(drawn, place, flight.version)
            if outcomes[row].ended or len(state.tokens) == state.request.max_new_tokens:
                ended.append(self._end(state, FinishReason.STOP if outcomes[row].ended else FinishReason.LENGTH, now))
        self._scheduler.record(outcomes)
        return ended

    def _launch(self, params: Policy) -> None:
        """Start the next dispatch that decodes, its prompts prefilled; plans that only prefill are carried out on the way."""
        self._settle_row_counts(params)
        self._settle_swap(params)
        while (plan := self._scheduler.plan(self._version)) is not None:
            self._seat(plan)
            self._prepare(plan.copies, plan.prefill, params)
            if plan.decode:
                decoding = sorted(plan.decode, key=lambda one: one.position)  # neighbours walk equally many pages
                count = next(count for count in self._row_counts if count >= len(decoding))
                rows = decode_rows(decoding, self._sampling.rows([one.row for one in decoding], count), self._shapes)
                self._pages, drawn = decode(params, self._spec, self._pages, rows, steps=self._steps, numerics=self._numerics)
                states = {one.row: self._requests[one.key] for one in decoding}
                self._in_flight = InFlight(version=plan.version, rows=states, drawn=drawn)
                return
            self._scheduler.record({})

    def _settle_row_counts(self, params: Policy) -> None:
        """Before anything else is computed."""
        if self._row_counts:
            return
        self._row_counts = row_counts(self._slots, self._spec.d_model)
        if not self._numerics.exact and len(self._row_counts) > 1:
            self._pages, self._row_counts = sound_counts(params, self._spec, self._pages, self._shapes, self._steps, self._row_counts)

    def _settle_swap(self, params: Policy) -> None:
        """After `load`, before the first plan with the new weights: what becomes of the keys and values that are there."""
        running = self._scheduler.counts()[State.RUNNING]
        swapped, self._swapped = self._swapped, False
        if swapped:
            self._scheduler.new_weights()
        if not swapped or not running:
            return
        measured = self._measured(params) if self._swap_now == "auto" else None
        keep = self._swap_now == "keep" or (measured is not None and measured <= self._divergence_limit)
        recomputed = self._scheduler.recompute_undrawn() if keep else running
        if not keep:
            self._scheduler.recompute_all()
        self.last_swap = Swap(
            version=self._version,
            kept=running - recomputed,
            recomputed=recomputed,
            divergence=measured if measured is not None and isfinite(measured) else None,
        )
        self._events.emit(self.id, "kv_swap", **asdict(self.last_swap))

    def _measured(self, params: Policy) -> float | None:
        """The divergence of the oldest sequences; None where none has got to its first token, and recomputing costs little."""
        sequences = self._scheduler.complete()[: len(self._probe_tables)]
        if not sequences:
            return None
        self._pages, found = divergence(
            params,
            self._spec,
            self._pages,
            sequences,
            self._probe_tables[: len(sequences)],
            self._sampling.rows([one.row for one in sequences], self._slots),
            self._shapes,
            steps=self._steps,
            numerics=self._numerics,
        )
        return found

    def _seat(self, plan: Plan) -> None:
        """Requests that are computed on for the first time take their rows."""
        now = self._clock.now_s()
        for one in (*plan.prefill, *plan.decode):
            state = self._requests[one.key]
            if state.started_s is None:
                state.row, state.started_s = one.row, now
                self._sampling.seat(one.row, state.request)

    def _prepare(self, copies: Sequence[tuple[int, int]], chunks: Sequence[Chunk], params: Policy) -> None:
        for sources, targets in copy_arguments(copies, self._shapes):
            self._pages = copy_pages(self._pages, sources, targets, numerics=self._numerics)
        for units in prefill_calls(chunks, self._shapes):
            self._pages = prefill(params, self._spec, self._pages, units, numerics=self._numerics)

    def _end(self, state: Request, reason: FinishReason, now_s: float) -> Ended:
        """Forget a request; its row is free for the next plan."""
        del self._requests[state.request.key]
        if state.row >= 0:
            self._sampling.free(state.row)
        return Ended(state=state, reason=reason, now_s=now_s)
