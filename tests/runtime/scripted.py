"""A sampler that says what it is told to, a token a step, without a model; and a server of it inside the test's own event loop."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from slipstream.core.clock import SystemClock
from slipstream.core.records import FinishReason, Sample, SampleRequest, WeightVersion
from slipstream.models.spec import ModelSpec, RopeSpec
from slipstream.runtime.serve.app import App, build_app
from slipstream.runtime.serve.engine_loop import Key
from slipstream.runtime.serve.metrics import Metrics
from slipstream.runtime.serve.model import LocalModel
from slipstream.runtime.serve.service import Service
from slipstream.text.chat import compile_template
from slipstream.text.detokenize import read_decoding
from slipstream.text.tokenizer import Tokenizer

Script = Callable[[SampleRequest], Sequence[int]]


class ScriptedSampler:
    """A `StreamingSampler` whose completions are `script`'s. `gate` lets steps through: all while it is set."""

    id, sampler_class = "scripted", "scripted"

    def __init__(self, script: Script, *, slots: int = 2, stop_ids: Sequence[int] = ()) -> None:
        self._script, self._slots, self._stops = script, slots, frozenset(stop_ids)
        self.version = self.prefilled_tokens = self.reused_tokens = 0
        self.gate = threading.Event()
        self.gate.set()
        self.steps = 0
        self.failure: Exception | None = None  # raised by step number `fails_at`, or the next one after it
        self.fails_at = 0
        self.threads: set[int] = set()  # that called
        self._waiting: list[SampleRequest] = []
        self._running: dict[Key, tuple[SampleRequest, list[int], list[int]]] = {}

    def load(self, weights: WeightVersion) -> None:
        if weights.version < 0:
            raise ValueError("no such weights")
        self.version = weights.version

    def waiting(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return len(self._running)

    def free_slots(self) -> int:
        return max(0, self._slots - self.running() - self.waiting())

    def submit(self, request: SampleRequest) -> None:
        self.threads.add(threading.get_ident())
        if request.top_k == 13:
            raise ValueError(f"request {request.key}: top_k = 13 brings bad luck")
        self._waiting.append(request)

    def abort(self, key: Key) -> Sample | None:
        self._waiting = [request for request in self._waiting if request.key != key]
        self._running.pop(key, None)
        return None

    def drawn(self, key: Key, start: int = 0) -> tuple[list[int], list[float], list[int]]:
        _, tokens, versions = self._running.get(key, (None, [], []))
        return tokens[start:], [-0.5] * len(tokens[start:]), versions[start:]

    def step(self) -> list[Sample]:
        self.threads.add(threading.get_ident())
        assert self.gate.wait(60)
        self.steps += 1
        if self.failure is not None and self.steps >= self.fails_at:
            raise self.failure
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting.pop(0)
            self._running[request.key] = (request, [], [])
        return [sample for key in list(self._running) if (sample := self._draw(key)) is not None]

    def _draw(self, key: Key) -> Sample | None:
        request, tokens, versions = self._running[key]
        script = self._script(request)
        tokens.append(script[len(tokens)])
        versions.append(self.version)
        stopped = tokens[-1] in self._stops
        if not stopped and len(tokens) < min(len(script), request.max_new_tokens):
            return None
        del self._running[key]
        return Sample(
            key=key,
            completion_ids=np.array(tokens, np.int32),
            logprobs=np.full(len(tokens), -0.5, np.float32),
            versions=np.array(versions, np.int32),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            slot=0,
            started_s=0.0,
            finished_s=0.0,
        )


def sample_request(name: str, *, new: int = 5, index: int = 0, top_k: int = -1) -> SampleRequest:
    return SampleRequest(
        key=(name, index), prompt_ids=np.array([1], np.int32), seed=0, max_new_tokens=new, temperature=1.0, stop_ids=(), top_k=top_k
    )


def local_model(tokenizer: Tokenizer, template: str) -> LocalModel:
    spec = ModelSpec(
        vocab=tokenizer.known_tokens,
        d_model=8,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=8,
        d_ff=8,
        rope=RopeSpec(theta=1e4),
        norm_eps=1e-5,
        tied=True,
        context=4096,
    )
    return LocalModel(directory=Path(), spec=spec, tokenizer=tokenizer, template=compile_template(template))


@asynccontextmanager
async def scripted_server(
    sampler: ScriptedSampler, model: LocalModel, *, slots: int = 2, max_waiting: int = 8
) -> AsyncIterator[tuple[AsyncOpenAI, Service, str]]:
    """A client of it, the service behind it, and its address."""
    metrics, clock = Metrics(), SystemClock()
    service = Service(sampler, slots=slots, max_waiting=max_waiting, clock=clock, metrics=metrics)
    app = App(
        name="scripted",
        model=model,
        decoding=read_decoding(model.tokenizer),
        service=service,
        metrics=metrics,
        max_tokens=4096,
        api_key=None,
        created=0,
    )
    service.start()
    server = TestServer(build_app(app))
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    try:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            yield client, service, url
    finally:
        sampler.gate.set()
        await service.stop()
        await server.close()
