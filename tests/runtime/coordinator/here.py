"""A coordinator of this process, over real sockets: the app on an event loop in a thread, a journal on disk, time moved by hand."""

import asyncio
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from slipstream.core.clock import ManualClock
from slipstream.core.records import Ticket
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy
from slipstream.runtime.coordinator.announcements import Announcements
from slipstream.runtime.coordinator.app import MAX_BODY_BYTES, App
from slipstream.runtime.coordinator.checks import Bounds
from slipstream.runtime.coordinator.desk import Desk, RunFacts
from slipstream.runtime.join.address import Address
from slipstream.runtime.join.caller import Caller
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.join.membership import Applicant, Seat
from slipstream.telemetry.jsonl import JsonlWriter, read_jsonl
from tests.ledger.rollouts import NumberedPrompts

SYNC = Policy(prompts_per_step=2, group_size=2, eta=0, pinned=True, steps=3)
INFLIGHT = Policy(prompts_per_step=2, group_size=2, eta=2, pinned=False, steps=5)
TOKEN = "secret"
LEASE_S = 30.0
CALLERS: list[Caller] = []  # made by a test, closed after it


class Here:
    """One start of a coordinator; `url` is where it answers."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        clock: ManualClock,
        *,
        port: int = 0,
        max_body_bytes: int = MAX_BODY_BYTES,
        tls: ssl.SSLContext | None = None,
        grading: str = "samplers",
        ratio_tokens: int = 1000,
    ) -> None:
        self.clock, self.folder = clock, folder
        self.ledger = Ledger(folder / "journal.sqlite", policy, NumberedPrompts(), clock, run_id="run", lease_s=LEASE_S)
        self.events = JsonlWriter(folder / "events.jsonl")
        facts = RunFacts(run_id="run", config="", run_dir=str(folder), host="here", grading=grading)
        bounds = Bounds(prompts=NumberedPrompts(), max_new_tokens=8, tokens=100, ratio_tokens=ratio_tokens)
        self.desk = Desk(self.ledger, facts, bounds, Announcements(keep=policy.eta + 2), self.events, clock)
        self._max_body_bytes, self._tls = max_body_bytes, tls
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self.port = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(30)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self.app = App(self.desk, TOKEN, self._max_body_bytes)
        runner = web.AppRunner(self.app.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self._ready.set()
        await self._stop.wait()
        self.desk.closing = True
        self.app.end_polls()
        await runner.cleanup()
        await self.app.close()

    def expire(self) -> None:
        """What a timer does in a real coordinator."""
        asyncio.run_coroutine_threadsafe(self.app.call(self.desk.expire), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.ledger.close()
        self.events.close()

    def kinds(self) -> list[str]:
        return [row["kind"] for row in read_jsonl(self.folder / "events.jsonl")]


@contextmanager
def coordinator(folder: Path, policy: Policy = SYNC, **options: Any) -> Iterator[Here]:
    here = Here(folder, policy, ManualClock(), **options)
    try:
        yield here
    finally:
        here.close()


def caller(url: str, token: str | None = TOKEN, clock: ManualClock | None = None, **options) -> Caller:
    options.setdefault("pause", lambda seconds: None)
    made = Caller(Address(url=url, token=token), role="worker", clock=clock or ManualClock(), rng=np.random.default_rng(0), **options)
    CALLERS.append(made)
    return made


def seat(url: str, kind: str = "sampler", name: str = "one", made: Caller | None = None) -> Seat:
    return Seat(made or caller(url), Applicant(kind=kind, incarnation=name, capabilities={}))  # type: ignore[arg-type]


def remote(one: Seat) -> RemoteLedger:
    return RemoteLedger(one, ManualClock())


def claimed(one: RemoteLedger, tickets: int = 1, version: int = 0) -> list[Ticket]:
    return one.claim("", tickets, version)


def post(url: str, name: str, body: bytes | dict, token: str | None = TOKEN) -> tuple[int, dict]:
    """Status and JSON of a call as any program could make it."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", data, headers, method="POST"), timeout=30) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start `work`; calling the result waits for it and gives back what it returned."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> object:
        thread.join(30)
        return found[0]

    return result
