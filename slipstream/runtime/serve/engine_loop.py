"""The thread that owns an engine: requests and weights go in from any thread, tokens come out as they are drawn. An actor.

An engine may be called by one thread only; this is that thread. It sleeps while there is nothing to sample and wakes at
once. It knows nothing of text. Called by `serve.service` and by `runtime.generate`.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.core.ports import Sampler
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.runtime.worker import Worker

Key = tuple[str, int]
STUCK_AFTER_S = 300.0  # of one call of the engine: a few tokens, at most with the compilation of a program before them


class StreamingSampler(Sampler, Protocol):
    """A sampler that can be asked for what it has drawn so far, and told to stop."""

    @property
    def prefilled_tokens(self) -> int: ...

    @property
    def reused_tokens(self) -> int: ...

    def abort(self, key: Key) -> Sample | None: ...

    def drawn(self, key: Key, start: int = 0) -> tuple[list[int], list[float], list[int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """News of one request: tokens since the last update, and how it ended if it did."""

    key: Key
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    versions: Sequence[int] = ()
    finish: FinishReason | None = None  # None: it goes on, or was refused
    raw_logprobs: Sequence[float] | None = None  # with `finish`: of all the sample's tokens, where they differ from `logprobs`
    refused: str = ""  # why the engine did not take it; the last update then


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the engine was doing after its last step."""

    running: int
    waiting: int
    version: int
    prefilled_tokens: int = 0  # since it was made
    reused_tokens: int = 0


class EngineLoop:
    """Runs `sampler` in a thread. `deliver` is called there with the updates of each step and must not block.

    `on_end` is called there too, when the thread has ended for any reason. After a failure nothing is delivered any more:
    `fault` says what it was, and whoever waits for updates has to be told by the caller.
    """

    def __init__(
        self,
        sampler: StreamingSampler,
        deliver: Callable[[Sequence[Update]], None],
        *,
        clock: Clock,
        on_end: Callable[[], None] = lambda: None,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self._sampler, self._deliver, self._clock = sampler, deliver, clock
        self._stuck_after_s = stuck_after_s
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._seen: dict[Key, int] = {}  # tokens delivered, of every request that has not ended
        self._stopping = False
        self._busy_since: float | None = None
        self.figures = Figures(running=0, waiting=0, version=sampler.version)
        self._on_end = on_end
        self._worker = Worker("engine", self._run, self._ended)

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its present step, requests or not; True when it has ended within the time."""
        self._commands.put(self._stop)
        return self._worker.join(timeout_s)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Ask for samples that belong together: the engine takes all of them, or each gets an update that says why not."""
        self._commands.put(partial(self._submit, tuple(requests)))

    def abort(self, keys: Sequence[Key]) -> None:
        """End requests now; nothing more is delivered of them. Keys that have ended or never were are let be."""
        self._commands.put(partial(self._abort, tuple(keys)))

    def load(self, weights: WeightVersion) -> Future[int]:
        """Take new weights before the next token of every request; the future is their version, or why they were not taken."""
        done: Future[int] = Future()
        self._commands.put(partial(self._load, weights, done))
        return done

    def fault(self) -> str:
        """Why no more tokens come; empty while all is well."""
        if self._worker.failure is not None:
            return f"the engine has failed: {_cause(self._worker.failure)}"
        since = self._busy_since
        if since is not None and (elapsed := self._clock.now_s() - since) > self._stuck_after_s:
            return f"the engine has been in one step for {elapsed:.0f} s"
        return ""

    def check(self) -> None:
        """Raise RunFailed when there is a fault."""
        if fault := self.fault():
            raise RunFailed(fault)

    def _run(self) -> None:
        while not self._stopping:
            self._obey()
            if self._seen and not self._stopping:
                self._advance()

    def _obey(self) -> None:
        """Carry out all commands; with nothing to sample, wait for one. `stop` ends the wait."""
        if not self._seen:
            self._commands.get()()
        try:
            while not self._stopping:
                self._commands.get_nowait()()
        except Empty:
            self._look()

    def _advance(self) -> None:
        self._busy_since = self._clock.now_s()
        finished = {sample.key: sample for sample in self._sampler.step()}
        self._busy_since = None
        updates = [update for key in tuple(self._seen) if (update := self._news(key, finished.get(key)))]
        self._look()
        if updates:
            self._deliver(updates)

    def _news(self, key: Key, sample: Sample | None) -> Update | None:
        seen = self._seen[key]
        if sample is None:
            token_ids, logprobs, versions = self._sampler.drawn(key, seen)
            self._seen[key] += len(token_ids)
            return Update(key=key, token_ids=token_ids, logprobs=logprobs, versions=versions) if token_ids else None
        del self._seen[key]
        return Update(
            key=key,
            token_ids=sample.completion_ids[seen:].tolist(),
            logprobs=sample.logprobs[seen:].tolist(),
            versions=sample.versions[seen:].tolist(),
            finish=sample.finish_reason,
            raw_logprobs=None if sample.raw_logprobs is None else sample.raw_logprobs.tolist(),
        )

    def _submit(self, requests: Sequence[SampleRequest]) -> None:
        taken: list[Key] = []
        try:
            for request in requests:
                self._sampler.submit(request)
                taken.append(request.key)
        except ValueError as error:
            for key in taken:
                self._sampler.abort(key)
            self._deliver([Update(key=request.key, refused=str(error)) for request in requests])
            return
        self._seen.update(dict.fromkeys(taken, 0))

    def _abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if self._seen.pop(key, None) is not None:
                self._sampler.abort(key)

    def _load(self, weights: WeightVersion, done: "Future[int]") -> None:
        self._busy_since = self._clock.now_s()
        try:
            self._sampler.load(weights)
        except Exception as error:  # noqa: BLE001 - the caller's: the engine goes on with the weights it has
            done.set_exception(error)
        else:
            self._look()
            done.set_result(self._sampler.version)
        self._busy_since = None

    def _stop(self) -> None:
        self._stopping = True

    def _look(self) -> None:
        sampler = self._sampler
        self.figures = Figures(
            running=sampler.running(),
            waiting=sampler.waiting(),
            version=sampler.version,
            prefilled_tokens=sampler.prefilled_tokens,
            reused_tokens=sampler.reused_tokens,
        )

    def _ended(self) -> None:
        if self._worker.failure is not None:
            print("".join(traceback.format_exception(self._worker.failure)), file=sys.stderr, flush=True)
        self._on_end()


def _cause(error: BaseException) -> str:
    return str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
