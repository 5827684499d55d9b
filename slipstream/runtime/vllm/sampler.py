"""A vLLM server behind `core.ports.Sampler`: token ids in and out, log-probs of the very draws, weights through a directory. An actor.

The server is the sampler's alone. It must run in development mode, tell processed log-probs, and see the weights' directory:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs

How it keeps the port's promises:

- *Versions.* What a stream has brought when a pause is answered is not all that was drawn, so tokens could not be told apart by
  the moment of a swap. `load` therefore ends all running requests (`/pause?mode=abort`: each stream then ends with all that was
  drawn, and old keys and values are forgotten), swaps the weights, and asks for the rest of each sample with what is there as
  part of its prompt. Each token's version, and its log-prob under it, are exact; prompts are computed again.
- *Seeds.* The rest of an interrupted sample has a seed of its own, made of the sample's and the tokens there are. So a sample is a
  function of its seed and of where it was interrupted.
- *Log-probs.* A probe at the start refuses a server that tells the model's own log-probs instead of its draws'. The raw log-probs
  of samples with truncation or bias are not told by such a server: they are NaN.
"""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.engine.requests import check_request, restricts
from slipstream.models.lora import whole
from slipstream.models.spec import ModelSpec
from slipstream.runtime.vllm.connection import Busy, Connection, Ended
from slipstream.runtime.vllm.opening import open_server
from slipstream.runtime.vllm.untied import untied
from slipstream.runtime.vllm.wire import Json, WireError, body, problems, read_line
from slipstream.weights.files import write_model
from slipstream.weights.special_ids import SpecialIds

CALL_S = 60.0  # for pauses and the like
LOAD_S = 600.0  # for the server to read weights
STEP_S = 0.1  # a step without news; weights and tickets are looked for in between
LAG_S = 0.2  # for streams to end after a pause, before what is left is ended once more
SILENT_AFTER_S = 600.0

Key = tuple[str, int]
_NO_IDS = SpecialIds(bos=None, eos=(), pad=None)  # of the files only the tensors are read


@dataclass(slots=True)
class _Drawing:
    """A request that has not ended, and what has come of it."""

    request: SampleRequest
    slot: int = -1
    started_s: float = 0.0
    heard_s: float = 0.0  # last news
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish: str | None = None  # the server's word
    busy: str = ""  # why the server takes it only later
    stream: Future[None] | None = None


class VllmSampler:
    """Samples of the server at `url`, which serves `spec` under the name `model`. Called by one thread only; `close` it.

    `directory` is where `load` writes weights, as `dtype` (what the server computes in loses nothing). At most `slots` requests are
    with the server at a time, none of which may have to wait there. Raises UsageError for a server that cannot be used, RunFailed
    (with the URL and the cause) for one that does not answer; `submit` raises ValueError for a request that cannot be drawn.
    """

    def __init__(
        self,
        url: str,
        *,
        id: str,
        model: str,
        spec: ModelSpec,
        directory: Path,
        clock: Clock,
        slots: int,
        dtype: str = "float32",
        api_key: str | None = None,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self.id = id
        self._model, self._spec, self._directory, self._dtype = model, spec, directory, dtype
        self._clock, self._slots, self._silent_after_s = clock, slots, silent_after_s
        self._known = spec.vocab if spec.known_tokens is None else spec.known_tokens
        self._version, self._paused, self._interrupting = -1, False, False
        self._waiting: deque[_Drawing] = deque()
        self._running: dict[Key, _Drawing] = {}
        self._ended: list[Sample] = []
        self._free = set(range(slots))
        self._news: SimpleQueue[tuple[_Drawing, str | Busy | Ended]] = SimpleQueue()
        self._server = Connection(url, api_key)
        try:
            server = open_server(self._server, model, slots, tied=spec.tied)
        except BaseException:
            self._server.close()
            raise
        self._max_tokens, self.sampler_class, self._own_head = server.max_tokens, server.sampler_class, server.own_head

    def close(self) -> None:
        """Leave the server; requests still running there are ended."""
        self._server.close()

    # ---- the port

    @property
    def version(self) -> int:
        return self._version

    def waiting(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        """Requests that hold a slot, or have ended and not been returned yet."""
        return len(self._running) + len(self._ended)

    def free_slots(self) -> int:
        return max(0, self._slots - len(self._running) - len(self._waiting))

    def load(self, weights: WeightVersion) -> None:
        """Raises RunFailed where the disk or the server refuses; the server may then be paused, with parts of both versions."""
        params = whole(weights.params)
        spec, params = untied(self._spec, params) if self._own_head else (self._spec, params)
        write_model(self._directory, spec, params, special=_NO_IDS, dtype=self._dtype)
        self._interrupt()
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self._directory.resolve())}}
        self._ask("POST", "/collective_rpc", reload, deadline_s=LOAD_S)
        self._version = weights.version
        if not self._paused:
            self._ask("POST", "/resume")

    def submit(self, request: SampleRequest) -> None:
        check_request(request, vocabulary=self._spec.vocab, known=self._known, max_tokens=self._max_tokens)
        if found := problems(request):
            raise ValueError(f"request {request.key}: {'; '.join(found)}")
        self._waiting.append(_Drawing(request))

    def step(self) -> list[Sample]:
        """Hand on what waits, take what has come, waiting for it a moment; what ended."""
        if self._version < 0:
            raise RuntimeError(f"sampler {self.id} has no weights; call load first")
        if not self._paused:
            self._fill()
            self._listen(0.0 if self._ended else STEP_S)
            self._check_silence()
        ended, self._ended = self._ended, []
        return ended

    # ---- what `runtime.serve.engine_loop` asks for besides

    def abort(self, key: Key) -> Sample | None:
        """End a request now; what has come of it, or None where no such request is waiting or running."""
        self._listen(0.0)
        state = self._find(key)
        if state is None:
            return None
        if self._running.pop(key, None) is None:
            self._waiting.remove(state)
        if state.stream is not None:
            state.stream.cancel()  # the server ends what nobody listens to
        return self._sample(state, FinishReason.ABORTED)

    def drawn(self, key: Key, start: int = 0) -> tuple[list[int], list[float], list[int]]:
        """Tokens, log-probs and versions from the `start`-th on that have come of a request; for streaming."""
        state = self._find(key)
        return (state.tokens[start:], state.logprobs[start:], state.versions[start:]) if state else ([], [], [])

    def pause(self) -> None:
        """The server draws nothing, and `step` does nothing, until `resume`; requests keep their places."""
        self._ask("POST", "/pause?mode=keep")
        self._paused = True

    def resume(self) -> None:
        self._ask("POST", "/resume")
        self._paused = False
        for state in self._running.values():
            state.heard_s = self._clock.now_s()

    # ---- requests

    def _find(self, key: Key) -> _Drawing | None:
        return self._running.get(key) or next((one for one in self._waiting if one.request.key == key), None)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            state = self._waiting.popleft()
            state.heard_s, state.finish = self._clock.now_s(), None
            if state.slot < 0:
                state.slot, state.started_s = min(self._free), state.heard_s
                self._free.remove(state.slot)
            self._running[state.request.key] = state
            asked = body(state.request, self._model, range(self._known, self._spec.vocab), state.tokens)
            state.stream = self._server.stream("/v1/completions", asked, partial(self._put, state))

    def _put(self, state: _Drawing, news: str | Busy | Ended) -> None:
        self._news.put((state, news))

    def _listen(self, wait_s: float) -> None:
        """Take all news there are; where there are none yet, wait for the first."""
        if not self._running:
            return
        try:
            item = self._news.get(timeout=wait_s) if wait_s else self._news.get_nowait()
            while True:
                self._take(*item)
                item = self._news.get_nowait()
        except Empty:
            return

    def _take(self, state: _Drawing, news: str | Busy | Ended) -> None:
        if self._running.get(state.request.key) is not state:
            return  # aborted since
        match news:
            case Busy():
                state.busy = news.reason
            case Ended():
                self._end(state, news.problem)
            case str():
                state.busy, state.heard_s = "", self._clock.now_s()
                try:
                    self._add(state, news)
                except WireError as error:
                    raise self._failed(state, str(error)) from error

    def _add(self, state: _Drawing, line: str) -> None:
        piece = read_line(line)
        if piece is None:
            return
        asked = [*state.request.prompt_ids.tolist(), *state.tokens]
        if piece.prompt_ids is not None and list(piece.prompt_ids) != asked:
            raise WireError(f"it has another prompt of {len(piece.prompt_ids)} tokens than the {len(asked)} that were sent")
        state.tokens += piece.token_ids
        state.logprobs += piece.logprobs
        state.versions += [self._version] * len(piece.token_ids)
        state.finish = piece.finish

    def _end(self, state: _Drawing, problem: str) -> None:
        """A stream has ended: with its sample, or interrupted, and then the request goes on later."""
        if problem:
            raise self._failed(state, problem)
        del self._running[state.request.key]
        reason = None
        if state.tokens and state.tokens[-1] in state.request.stop_ids:
            reason = FinishReason.STOP
        elif len(state.tokens) == state.request.max_new_tokens:
            reason = FinishReason.LENGTH
        interrupted = self._interrupting and state.finish in ("abort", None)
        if reason is not None and (interrupted or state.finish in ("stop", "length")):
            self._ended.append(self._sample(state, reason))
        elif interrupted:
            self._waiting.appendleft(state)
        else:
            raise self._failed(state, f"ended after {len(state.tokens)} tokens, by itself (finish_reason {state.finish})")

    def _sample(self, state: _Drawing, reason: FinishReason) -> Sample:
        if state.slot >= 0:
            self._free.add(state.slot)
        now = self._clock.now_s()
        unknown = np.full(len(state.tokens), np.nan, np.float32) if restricts(state.request, self._known) else None
        return Sample(
            key=state.request.key,
            completion_ids=np.array(state.tokens, np.int32),
            logprobs=np.array(state.logprobs, np.float32),
            versions=np.array(state.versions, np.int32),
            raw_logprobs=unknown,
            finish_reason=reason,
            slot=state.slot,
            started_s=now if state.slot < 0 else state.started_s,
            finished_s=now,
        )

    # ---- the server

    def _interrupt(self) -> None:
        """Nothing runs any more; what did is put back, with all that was drawn. Old keys and values are forgotten."""
        self._ask("POST", "/pause?mode=abort")
        self._interrupting, deadline_s = True, self._clock.now_s() + CALL_S
        self._listen(LAG_S)
        while self._running:
            if self._clock.now_s() > deadline_s:
                raise RunFailed(f"the vLLM server at {self._server.url} has not ended {len(self._running)} requests in {CALL_S:g} s")
            self._ask("POST", "/abort_requests", {})  # what reached it after the pause only waits there
            self._listen(LAG_S)
        self._interrupting = False

    def _ask(self, method: str, path: str, sent: Json | None = None, *, deadline_s: float = CALL_S) -> None:
        answer = self._server.call(method, path, sent, deadline_s=deadline_s)
        if answer.problem:
            raise RunFailed(f"the vLLM server at {self._server.url} refuses {method} {path}: {answer.problem}")

    def _check_silence(self) -> None:
        now = self._clock.now_s()
        for state in self._running.values():
            if (silent_s := now - state.heard_s) > self._silent_after_s:
                raise self._failed(state, f"not a word in {silent_s:.0f} s{f'; it was busy: {state.busy}' if state.busy else ''}")

    def _failed(self, state: _Drawing, cause: str) -> RunFailed:
        return RunFailed(f"the vLLM server at {self._server.url}, asked for sample {state.request.key}: {cause}")
