"""The process of `slipstream coordinator`: takes directory and port, opens the ledger, answers until the run is over or it is told to stop.

When the last batch is trained it waits for the workers to leave, writes trace and report, and ends.
"""

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aiohttp import web

from slipstream.config.load import dump_config
from slipstream.config.schema import RunConfig
from slipstream.core.clock import SystemClock
from slipstream.core.errors import UsageError
from slipstream.core.ids import checkpoint_name, random_run_id
from slipstream.envs.agent import AgentTask
from slipstream.ledger.ledger import LEASE_S, STALLED_S, Ledger
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.app import App, on_loopback
from slipstream.runtime.coordinator.checks import Bounds
from slipstream.runtime.coordinator.desk import Desk, RunFacts
from slipstream.runtime.coordinator.tls import server_context
from slipstream.runtime.failures import failures_logged
from slipstream.runtime.ledger_policy import environments, ledger_policy
from slipstream.runtime.listener import bound
from slipstream.runtime.shape import Shape, open_shape
from slipstream.telemetry.jsonl import JsonlWriter, Row, read_jsonl
from slipstream.telemetry.report import write_report
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.status import GradingStatus, write_status
from slipstream.telemetry.trace import write_trace

FAREWELL_S = 5.0  # for the last bytes of answers to be written


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What a person chooses."""

    host: str = "127.0.0.1"
    port: int = 8700  # 0: any free one
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    lease_s: float = LEASE_S
    stalled_s: float = STALLED_S  # a sampler that does not get on for so long is let go


def coordinate(config: RunConfig, directory: RunDirectory, settings: CoordinatorSettings, ready: Callable[[str], None]) -> bool:
    """Answer until the run is over (True) or SIGTERM or SIGINT comes (False). `ready` is called with the URL.

    The directory is locked by the caller. Raises UsageError when address, certificates or data cannot be used, RunFailed when the
    journal cannot be read or written.
    """
    tls = server_context(settings.tls_cert, settings.tls_key)
    if settings.token is None and not on_loopback(settings.host):
        raise UsageError(f"--host {settings.host} can be reached by others: give --token-file, with a secret that the workers give too")
    with bound(settings.host, settings.port) as listener:
        shape = open_shape(config)
        scheme, host = "https" if tls else "http", f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{scheme}://{host}:{listener.getsockname()[1]}"
        with failures_logged(directory.logs / "coordinator.log"):
            run = _Run(config, directory, settings, shape)
            try:
                return asyncio.run(run.serve(listener, tls, lambda: ready(url)))
            finally:
                run.close()


class _Run:
    """One start of a coordinator."""

    def __init__(self, config: RunConfig, directory: RunDirectory, settings: CoordinatorSettings, shape: Shape) -> None:
        rows = read_jsonl(directory.events)
        self._directory, self._shape, self._lease_s, self._token = directory, shape, settings.lease_s, settings.token
        self._clock = SystemClock(offset_s=max((row["time"] for row in rows), default=0.0))
        self._events = JsonlWriter(directory.events)
        run_id = _run_id(rows)
        self._ledger = Ledger(
            directory.journal,
            ledger_policy(config),
            shape.task,
            self._clock,
            run_id=run_id,
            environment_of=environments(config, shape.task),
            lease_s=settings.lease_s,
            stalled_s=settings.stalled_s,
            warn=lambda text: self._desk.emit("coordinator", "warning", detail=text),
        )
        self._graders = config.grading.on == "graders"
        facts = RunFacts(
            run_id=run_id,
            config=dump_config(config),
            run_dir=str(directory.path.resolve()),
            host=socket.gethostname(),
            grading=config.grading.on,
        )
        tokens = shape.spec.vocab if shape.spec.known_tokens is None else shape.spec.known_tokens
        bounds = Bounds(
            prompts=shape.task,
            max_new_tokens=config.sampling.max_new_tokens,
            tokens=tokens,
            ratio_band=config.trust.ratio_band,
            ratio_tokens=config.trust.ratio_tokens,
            agents_prompt_tokens=shape.task.max_prompt_tokens if isinstance(shape.task, AgentTask) else None,
        )
        announcements = Announcements(keep=config.mode.eta + 2)
        self._desk = Desk(self._ledger, facts, bounds, announcements, self._events, self._clock)
        self._desk.finished = (directory.checkpoints / checkpoint_name(config.run.steps) / "manifest.json").exists()
        mode = {"mode": config.mode.kind, "eta": config.mode.eta, "seed": config.run.seed, "recipe": config.run.recipe}
        self._desk.emit("supervisor", "run_started", run_id=run_id, term=self._desk.term, **mode)

    async def serve(self, listener: socket.socket, tls: ssl.SSLContext | None, ready: Callable[[], None]) -> bool:
        told = _signals((signal.SIGTERM, signal.SIGINT))
        app = App(self._desk, self._token)
        runner = web.AppRunner(app.application(), handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_S)
        await runner.setup()
        try:
            await web.SockSite(runner, listener, backlog=1024, ssl_context=tls).start()
            ready()
            tasks = [asyncio.create_task(one) for one in (told.wait(), app.over.wait(), self._tick(app))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._desk.closing = True
            app.end_polls()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await runner.cleanup()
            await app.close()
        if app.failure is not None:
            raise app.failure
        return self._desk.done and self._desk.finished

    async def _tick(self, app: App) -> bool:
        """Lets leases end, until the run is over and everyone has left."""
        while not (self._desk.done and self._desk.finished and not self._desk.present):
            await asyncio.sleep(self._lease_s / 10)
            await app.call(partial(self._look, app.verdicts.status() if self._graders else None))
        return True

    def _look(self, grading: GradingStatus | None) -> None:
        """Called in the ledger's thread."""
        self._desk.expire()
        write_status(self._directory.status, replace(self._desk.moment(), grading=grading))

    def close(self) -> None:
        """Trace and report of a run that is over; then the files."""
        if self._desk.done and self._desk.finished:
            self._desk.emit("supervisor", "run_finished", steps=self._ledger.state.version)
            write_trace(self._directory.path)
            write_report(self._directory.path, decode=self._shape.task.tokenizer.decode)
        self._ledger.close()
        self._events.close()


def _run_id(rows: Sequence[Row]) -> str:
    """That of the run's earlier starts, or a new one."""
    return next((row["run_id"] for row in reversed(rows) if row["kind"] == "run_started"), None) or random_run_id()


def _signals(numbers: Sequence[signal.Signals]) -> asyncio.Event:
    told = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told
