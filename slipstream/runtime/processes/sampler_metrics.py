"""A sampler's own figures in Prometheus' text format, over HTTP in threads of their own: `slipstream sampler --metrics-port`.

The sampler leaves its figures here after each turn; whoever asks gets the last ones and never waits for it.
"""

import ssl
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from slipstream.core.ports import Sampler
from slipstream.loop.dispatch import Dispatch
from slipstream.loop.phases import Phases
from slipstream.runtime.coordinator import figures
from slipstream.runtime.coordinator.tls import server_context
from slipstream.runtime.http_requests import is_bearer
from slipstream.runtime.join.address import JoinSettings
from slipstream.runtime.listener import bound
from slipstream.runtime.processes.weight_server import own_address
from slipstream.runtime.worker import Worker

SILENT_S = 10.0  # for whoever connects and asks nothing
END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFigures:
    """One moment of a sampler."""

    version: int = -1  # of the weights loaded
    tokens: int = 0  # drawn since the process began
    running: int = 0  # requests that hold a slot
    waiting: int = 0  # requests for which there was none yet
    episodes: int = 0  # that have not ended, those being judged included
    epoch: int = 0
    phase_s: Mapping[str, float] = field(default_factory=dict[str, float])  # seconds so far, by phase


def text(now: SamplerFigures) -> str:
    """All families."""
    gauge, counter = partial(figures.family, kind="gauge"), partial(figures.family, kind="counter")
    return figures.text(
        [
            gauge("sampler_version", told="Policy version of the weights loaded; -1: none yet.", values={"": now.version}),
            gauge("sampler_epoch", told="Rises each time that it joins.", values={"": now.epoch}),
            gauge("sampler_running", told="Requests that hold a slot.", values={"": now.running}),
            gauge("sampler_waiting", told="Requests that wait for a slot.", values={"": now.waiting}),
            gauge("sampler_episodes", told="Episodes that have not ended.", values={"": now.episodes}),
            counter("sampler_tokens_total", told="Tokens drawn.", values={"": now.tokens}),
            counter("sampler_phase_seconds_total", told="Time by phase.", values=figures.labelled("phase", now.phase_s)),
        ]
    )


class Latest:
    """The last figures of this process. Its tokens go on counting when it joins anew and its work begins again."""

    def __init__(self) -> None:
        self.now = SamplerFigures()
        self._server: MetricsServer | None = None
        self._before = 0  # tokens of earlier epochs

    def note(self, dispatch: Dispatch, engine: Sampler, phases: Phases, epoch: int) -> None:
        """After a turn, by the thread that made it."""
        if epoch != self.now.epoch:
            self._before = self.now.tokens
        self.now = SamplerFigures(
            version=engine.version,
            tokens=self._before + dispatch.tokens,
            running=engine.running(),
            waiting=engine.waiting(),
            episodes=dispatch.episodes.open,
            epoch=epoch,
            phase_s=phases.seconds(),
        )

    @contextmanager
    def served(self, settings: JoinSettings, port: int | None) -> Generator[None]:
        """At the address where the sampler serves weights, with the same token and certificate. Raises UsageError."""
        if port is None:
            yield
            return
        host, tls = settings.host or own_address(settings.address.url), server_context(settings.tls_cert, settings.tls_key)
        self._server = MetricsServer(host=host, port=port, token=settings.address.token, tls=tls, now=lambda: self.now)
        print(f"slipstream: figures at {self._server.url}", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            self._server.close()

    def check(self) -> None:
        """Raise what the server died of."""
        if self._server is not None:
            self._server.check()


class MetricsServer:
    """Has its address from construction on, and answers until `close`. With a token every call needs it."""

    def __init__(self, *, host: str, port: int, token: str | None, tls: ssl.SSLContext | None, now: Callable[[], SamplerFigures]) -> None:
        """Raises UsageError when the address cannot be had. `port` 0 takes any free one."""
        listener = bound(host, port, option="--metrics-port")
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}/metrics"

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S

            def do_GET(self) -> None:
                if token and not is_bearer(self.headers.get("Authorization", ""), token):
                    self._answer(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong; send it as Authorization: Bearer TOKEN\n")
                elif self.path != "/metrics":
                    self._answer(HTTPStatus.NOT_FOUND, f"there is no {self.path} here, only /metrics\n")
                else:
                    self._answer(HTTPStatus.OK, text(now()))

            def _answer(self, status: HTTPStatus, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", figures.CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=False)
        self._server.socket.close()
        # Handshakes are made by the thread of each connection, so that a slow one keeps nobody waiting.
        self._server.socket = tls.wrap_socket(listener, server_side=True, do_handshake_on_connect=False) if tls else listener
        self._server.server_activate()
        self._worker = Worker("metrics-serve", self._server.serve_forever, lambda: None)
        self._worker.start()

    def check(self) -> None:
        """Raise what the server died of."""
        self._worker.check()

    def close(self) -> None:
        self._server.shutdown()
        self._worker.join(END_S)
        self._server.server_close()
