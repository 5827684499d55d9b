"""The engine: an actor that keeps its slots full. Implements `core.ports.Sampler`; called by one thread only.

`step` admits waiting requests into free slots, dispatches a few decode steps, and returns the samples that ended. New
weights take effect between two dispatches; each token remembers the version that drew it.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.engine.admission import bucket, plan_prefill
from slipstream.engine.decode import Cache, decode, empty_cache, prefill
from slipstream.engine.rows import SlotTable
from slipstream.models.parameters import Params, unstack
from slipstream.models.quant import COMPUTE, at_precision
from slipstream.models.spec import ModelSpec
from slipstream.models.weight import Precision

PROMPTS_PER_PREFILL = 8  # distinct prompts of one prefill call; fixed, so that shapes (and bits) never depend on load


@dataclass(slots=True)
class _Running:
    """A request that holds a slot, and what it has drawn so far."""

    request: SampleRequest
    started_s: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Engine:
    """A batched sampler on one device.

    `max_tokens` bounds prompt plus completion; the cache holds that many positions a slot. `weights` must be loaded before
    the first step. Raises ValueError for a request that cannot fit or be drawn.
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
        stop_ids: Sequence[int],
        precision: Precision = "f32",
    ) -> None:
        self.id = id
        self.sampler_class = f"{jax.default_backend()}/{precision}"
        self._spec, self._clock, self._slots = spec, clock, slots
        self._precision: Precision = precision
        self._max_tokens = max_tokens
        self._tokens_per_dispatch = tokens_per_dispatch
        self._stop_ids = jnp.asarray(list(stop_ids), jnp.int32)
        self._stops = frozenset(stop_ids)
        self._cache: Cache = empty_cache(spec, slots, self._cache_tokens(), COMPUTE[precision])
        self._table = SlotTable(slots)
        self._params: Params | None = None
        self._version = -1
        self._waiting: deque[SampleRequest] = deque()
        self._running: dict[int, _Running] = {}

    @property
    def version(self) -> int:
        return self._version

    def waiting(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return len(self._running)

    def free_slots(self) -> int:
        return max(0, self._slots - len(self._running) - len(self._waiting))

    def load(self, weights: WeightVersion) -> None:
        self._params = unstack(at_precision(weights.params, self._spec, self._precision))
        self._version = weights.version

    def submit(self, request: SampleRequest) -> None:
        tokens = len(request.prompt_ids)
        if tokens == 0:
            raise ValueError(f"request {request.key}: the prompt is empty")
        if request.max_new_tokens < 1 or tokens + request.max_new_tokens > self._max_tokens:
            raise ValueError(
                f"request {request.key}: {tokens} prompt + {request.max_new_tokens} new tokens; at most {self._max_tokens} fit"
            )
        if request.prompt_ids.min() < 0 or request.prompt_ids.max() >= self._spec.vocab:
            raise ValueError(f"request {request.key}: a token id lies outside the vocabulary of {self._spec.vocab}")
        if frozenset(request.stop_ids) != self._stops:
            raise ValueError(f"request {request.key}: stop ids {request.stop_ids} differ from the engine's {sorted(self._stops)}")
        if not 0 <= request.seed < 2**64:
            raise ValueError(f"request {request.key}: seed {request.seed} is not an unsigned 64-bit number")
        if not 0 <= request.temperature < math.inf:
            raise ValueError(f"request {request.key}: temperature {request.temperature} is neither 0 (greedy) nor a positive number")
        self._waiting.append(request)

    def step(self) -> list[Sample]:
        """Admit, draw up to `tokens_per_dispatch` tokens a slot, return what ended. Nothing to do: an empty list.

        Raises RunFailed when the weights give log-probs that are not finite: no sample of theirs means anything.
        """
        if self._params is None:
            raise RuntimeError(f"engine {self.id} has no weights; call load first")
        self._admit(self._params)
        if not self._running:
            return []
        self._cache, drawn = decode(self._params, self._spec, self._cache, self._table.rows(), self._stop_ids, self._tokens_per_dispatch)
        return self._collect(*(np.asarray(array) for array in (drawn.token, drawn.logprob, drawn.valid)))

    def _cache_tokens(self) -> int:
        """Positions a slot: the token limit, or the longest padded prompt if that is longer."""
        return max(self._max_tokens, bucket(self._max_tokens - 1))

    def _admit(self, params: Params) -> None:
        free = [slot for slot in range(self._slots) if slot not in self._running]
        admitted = [(slot, self._waiting.popleft()) for slot in free[: len(self._waiting)]]
        if not admitted:
            return
        now = self._clock.now_s()
        for call in plan_prefill(admitted, self._slots, PROMPTS_PER_PREFILL):
            self._cache = prefill(params, self._spec, self._cache, call.token_ids, call.slots, call.sources)
        for slot, request in admitted:
            self._running[slot] = _Running(request=request, started_s=now)
            self._table.seat(slot, request)

    def _collect(self, tokens: np.ndarray, logprobs: np.ndarray, valid: np.ndarray) -> list[Sample]:
        if not np.isfinite(logprobs[valid]).all():
            raise RunFailed(f"engine {self.id}: the weights of version {self._version} give log-probs that are not finite")
        now = self._clock.now_s()
        finished = []
        for slot, count in zip(self._running, valid.sum(axis=0)[list(self._running)].tolist(), strict=True):
            state = self._running[slot]
            state.tokens.extend(tokens[:count, slot].tolist())
            state.logprobs.extend(logprobs[:count, slot].tolist())
            state.versions.extend([self._version] * count)
            self._table.advance(slot, state.tokens[-1], count)
            stopped = state.tokens[-1] in self._stops
            if stopped or len(state.tokens) == state.request.max_new_tokens:
                finished.append(_sample(state, slot, now, FinishReason.STOP if stopped else FinishReason.LENGTH))
                self._table.free(slot)
        for sample in finished:
            del self._running[sample.slot]
        return finished


def _sample(state: _Running, slot: int, now_s: float, reason: FinishReason) -> Sample:
    return Sample(
        key=state.request.key,
        completion_ids=np.array(state.tokens, np.int32),
        logprobs=np.array(state.logprobs, np.float32),
        versions=np.array(state.versions, np.int32),
        finish_reason=reason,
        slot=slot,
        started_s=state.started_s,
        finished_s=now_s,
    )
