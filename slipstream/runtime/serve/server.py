"""The process of `slipstream serve`: takes the port, loads the model, serves until told to stop, lets what runs end."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from slipstream.core.clock import Clock, SystemClock
from slipstream.core.errors import UsageError
from slipstream.engine.engine import Engine
from slipstream.models.weight import Precision
from slipstream.runtime.listener import bound
from slipstream.runtime.serve.app import App, build_app
from slipstream.runtime.serve.metrics import Metrics
from slipstream.runtime.serve.model import TOKENS_PER_DISPATCH, LocalModel, build_engine, open_model
from slipstream.runtime.serve.service import Service
from slipstream.text.detokenize import read_decoding

DEFAULT_MAX_TOKENS = 2048  # where the model's context is longer: the cache is held for every slot
FAREWELL_S = 5.0  # for the last bytes of answers to be written


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What a person chooses. All counts are positive."""

    model: Path
    name: str | None = None  # of the model for clients; None: the directory's name
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    slots: int = 8  # samples drawn at a time
    max_waiting: int = 256  # samples that may wait for a slot; beyond: status 429
    max_tokens: int | None = None  # prompt plus completion; None: the model's context, at most DEFAULT_MAX_TOKENS
    precision: Precision = "f32"
    tokens_per_dispatch: int = TOKENS_PER_DISPATCH
    api_key: str | None = None
    drain_s: float = 30.0  # for running requests to end when told to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server can be reached."""

    host: str
    port: int
    model: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def serve(settings: ServeSettings, ready: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called once requests are answered.

    Raises UsageError when the model or the address cannot be used, RunFailed at the end when the engine had failed.
    """
    _check(settings)
    with bound(settings.host, settings.port) as listener:
        model = open_model(settings.model)
        max_tokens = _context(settings, model)
        clock = SystemClock()
        engine = build_engine(
            model,
            clock,
            slots=settings.slots,
            max_tokens=max_tokens,
            precision=settings.precision,
            tokens_per_dispatch=settings.tokens_per_dispatch,
        )
        engine.warm_up()  # so that no request waits for a compilation
        asyncio.run(_serve(settings, model, engine, max_tokens, clock, listener, ready))


def _check(settings: ServeSettings) -> None:
    for name in ("slots", "max_tokens", "tokens_per_dispatch"):
        if (value := getattr(settings, name)) is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    for name in ("max_waiting", "drain_s"):
        if getattr(settings, name) < 0:
            raise UsageError(f"--{name.replace('_', '-').removesuffix('-s')} {getattr(settings, name)}: must not be negative")


def _context(settings: ServeSettings, model: LocalModel) -> int:
    context = model.spec.context
    if settings.max_tokens is None:
        return min(context, DEFAULT_MAX_TOKENS)
    if settings.max_tokens > context or settings.max_tokens < 2:
        raise UsageError(f"--max-tokens {settings.max_tokens}: a prompt and a completion need 2 to {context}, the model's context")
    return settings.max_tokens


async def _serve(
    settings: ServeSettings,
    model: LocalModel,
    engine: Engine,
    max_tokens: int,
    clock: Clock,
    listener: socket.socket,
    ready: Callable[[Address], None],
) -> None:
    metrics = Metrics()
    service = Service(engine, slots=settings.slots, max_waiting=settings.max_waiting, clock=clock, metrics=metrics)
    app = App(
        name=settings.name or settings.model.resolve().name,
        model=model,
        decoding=read_decoding(model.tokenizer),
        service=service,
        metrics=metrics,
        max_tokens=max_tokens,
        api_key=settings.api_key,
        created=int(time.time()),
    )
    told, again = _signals((signal.SIGTERM, signal.SIGINT))
    runner = web.AppRunner(build_app(app), handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_S)
    await runner.setup()
    service.start()
    try:
        site = web.SockSite(runner, listener, backlog=1024)
        await site.start()
        ready(Address(host=settings.host, port=listener.getsockname()[1], model=app.name))
        await told.wait()
        await site.stop()
        if not await service.drain(settings.drain_s, again):
            print("slipstream: not all requests ended in time; the rest were told so", file=sys.stderr, flush=True)
        await runner.cleanup()
    finally:
        await service.stop()
    service.check()


def _signals(numbers: Sequence[signal.Signals]) -> tuple[asyncio.Event, asyncio.Event]:
    """Events of the first signal and of the second."""
    told, again = asyncio.Event(), asyncio.Event()

    def handle() -> None:
        (again if told.is_set() else told).set()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, handle)
    return told, again
