"""Between the event loop and the engine's thread: who waits for which samples, how many may, and what happens when the engine fails.

An actor on the event loop: everything here but `_arrived` runs there. Called by `serve.app`; owns the engine's loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from slipstream.core.clock import Clock
from slipstream.core.records import SampleRequest, WeightVersion
from slipstream.runtime.serve.engine_loop import EngineLoop, Figures, Key, StreamingSampler, Update
from slipstream.runtime.serve.metrics import Metrics
from slipstream.runtime.serve.wire import RequestError

WATCH_EVERY_S = 1.0  # how often a stuck engine is looked for; a dead one is known at once
STOP_S = 10.0  # for the engine's last step


class Busy(RequestError):
    """There are as many requests as may wait: try again later."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} samples are running or waiting; try again later", code="rate_limit_exceeded", status=429)


class Unavailable(RequestError):
    """No tokens come any more, or the server is about to end."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause, code="unavailable", status=503)


@dataclass(slots=True, eq=False)
class Generation:
    """The samples of one request. Iterate for their updates, until all have ended; leave the `Service.generation` block to give up."""

    open: set[Key]
    version: int | None  # the only weights that may draw; None: any
    arrived_s: float
    abort: Callable[[set[Key]], None]
    updates: "asyncio.Queue[Update | RequestError]" = field(default_factory=asyncio.Queue)
    last_s: dict[Key, float] = field(default_factory=dict)  # when tokens of a sample last came

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Raises RequestError when the samples cannot go on. The service owns the wait: it fails every generation that it cannot feed."""
        while self.open:
            update = await self.updates.get()
            if isinstance(update, RequestError):
                raise update
            if update.key not in self.open:  # came before the engine heard that no more of it is wanted
                continue
            if self.version is not None and any(version != self.version for version in update.versions):
                raise RequestError(
                    f"weight_version = {self.version} was replaced while it was sampling", param="weight_version", status=409
                )
            if update.finish is not None:
                self.open.discard(update.key)
            yield update

    def end(self, key: Key) -> None:
        """Want no more of a sample."""
        if key in self.open:
            self.open.discard(key)
            self.abort({key})


class Service:
    """One engine shared by many requests, at most `slots + max_waiting` samples at a time."""

    def __init__(self, sampler: StreamingSampler, *, slots: int, max_waiting: int, clock: Clock, metrics: Metrics) -> None:
        self._clock, self._metrics = clock, metrics
        self._limit = slots + max_waiting
        self._generations: dict[Key, Generation] = {}
        self._closing = ""
        self._idle = asyncio.Event()
        self._idle.set()
        self._events = asyncio.get_running_loop()
        self._engine = EngineLoop(sampler, self._arrived, clock=clock, on_end=self._engine_ended)
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._engine.start()
        self._watch = asyncio.create_task(self._watched())

    def figures(self) -> Figures:
        return self._engine.figures

    def fault(self) -> str:
        """Why no requests are taken; empty while they are."""
        return self._engine.fault() or self._closing

    def load(self, weights: WeightVersion) -> "Future[int]":
        """Take new weights between two tokens. Safe from any thread."""
        return self._engine.load(weights)

    @contextmanager
    def generation(self, samples: Sequence[SampleRequest], version: int | None = None):
        """The samples of a request, begun at once. What has not ended when the block is left is aborted.

        Raises Busy, Unavailable, or RequestError where `version` is not loaded.
        """
        if fault := self.fault():
            raise Unavailable(fault)
        if version is not None and version != (loaded := self.figures().version):
            raise RequestError(f"weight_version = {version} is not loaded; version {loaded} is", param="weight_version", status=404)
        if len(samples) > self._limit:
            raise RequestError(f"{len(samples)} samples in one request; this server takes at most {self._limit} at a time", param="n")
        if len(self._generations) + len(samples) > self._limit:
            raise Busy(len(self._generations))
        keys = {sample.key for sample in samples}
        made = Generation(open=set(keys), version=version, arrived_s=self._clock.now_s(), abort=self._forget)
        self._generations |= dict.fromkeys(keys, made)
        self._idle.clear()
        self._metrics.prompt_tokens += sum(len(sample.prompt_ids) for sample in samples)
        self._engine.submit(samples)
        try:
            yield made
        finally:
            self._forget(keys)

    async def drain(self, timeout_s: float, cut_short: asyncio.Event) -> bool:
        """Take no more requests and wait for those there are; True when all ended by themselves. The rest are failed."""
        self._closing = "the server is shutting down"
        waits = [asyncio.create_task(self._idle.wait()), asyncio.create_task(cut_short.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        drained = self._idle.is_set()
        self._fail(self._closing)
        return drained

    async def stop(self) -> None:
        """End the engine's thread."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._engine.stop, STOP_S)

    def check(self) -> None:
        """Raise RunFailed when the engine has failed."""
        self._engine.check()

    def _arrived(self, updates: Sequence[Update]) -> None:
        """On the engine's thread: one wake of the event loop for all updates of a step."""
        self._soon(self._route, updates)

    def _engine_ended(self) -> None:
        self._soon(self._fail_if_faulty)

    def _soon(self, callback: Callable[..., None], *arguments: object) -> None:
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(callback, *arguments)

    def _route(self, updates: Sequence[Update]) -> None:
        now = self._clock.now_s()
        for update in updates:
            generation = self._generations.get(update.key)
            if generation is None:  # given up meanwhile
                continue
            if update.refused:
                generation.updates.put_nowait(RequestError(update.refused.partition(": ")[2] or update.refused))
                continue
            self._count(generation, update, now)
            generation.updates.put_nowait(update)
            if update.finish is not None:
                self._forget({update.key}, ended=True)

    def _count(self, generation: Generation, update: Update, now: float) -> None:
        tokens = len(update.token_ids)
        self._metrics.completion_tokens += tokens
        if not tokens:
            return
        before = generation.last_s.get(update.key)
        if before is None:
            self._metrics.first_token_s.observe(now - generation.arrived_s)
        else:
            self._metrics.between_tokens_s.observe((now - before) / tokens, tokens)
        generation.last_s[update.key] = now

    def _forget(self, keys: set[Key], *, ended: bool = False) -> None:
        there = [key for key in keys if self._generations.pop(key, None) is not None]
        if there and not ended:
            self._engine.abort(there)
        if not self._generations:
            self._idle.set()

    async def _watched(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            self._fail_if_faulty()

    def _fail_if_faulty(self) -> None:
        if fault := self._engine.fault():
            self._fail(fault)

    def _fail(self, cause: str) -> None:
        for generation in set(self._generations.values()):
            generation.updates.put_nowait(Unavailable(cause))
