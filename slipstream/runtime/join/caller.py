"""Calls to the coordinator from any thread: each with a deadline, tried again with growing, jittered pauses while it is away.

Called by `join.ledger` and what stands beside it. One connection a thread is kept open.
"""

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed, SlipstreamError, StaleEpoch
from slipstream.runtime.coordinator.messages import SEQUENCE_HEADER, TERM_HEADER
from slipstream.runtime.coordinator.tls import client_context
from slipstream.runtime.join.address import Address
from slipstream.telemetry.events import Events, NullEvents

PATIENCE_S = 600.0  # a coordinator that is away for less stops nobody
DEADLINE_S = 30.0  # of one call, beside what it asks the coordinator to wait
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
_AWAY = (502, 503, 504)
_LOST = (OSError, http.client.HTTPException)


class Refused(SlipstreamError):
    """The coordinator takes this call from nobody, or not from this worker; trying again is no use."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Ending(BaseException):
    """This worker was told to end while it waited for the coordinator. Not an Exception, so that no handler takes it for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: status 200 or 204."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    sequence: int = 0  # of the coordinator's ledger, where it says so

    def json(self) -> dict:
        return json.loads(self.body)


class Caller:
    """Thread-safe. `term` is the coordinator's as of the last answer. `end`, and `stopped` turning true, break off all waiting.

    `deadline_s` is that of one try: a connection whose other end has gone without a word is noticed by nothing else.
    """

    def __init__(
        self,
        address: Address,
        *,
        role: str,
        clock: Clock,
        rng: np.random.Generator,
        patience_s: float = PATIENCE_S,
        deadline_s: float = DEADLINE_S,
        pause: Callable[[float], object] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = address.url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        self._ssl = client_context(address.ca_file) if address.url.startswith("https:") else None
        self._role, self._clock, self._rng = role, clock, rng
        self.events: Events = NullEvents()  # until the role has joined and knows where its events go
        self._patience_s, self.deadline_s = patience_s, deadline_s
        self._ending = threading.Event()
        self._pause, self._stopped = pause or self._ending.wait, stopped
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._connections: set[http.client.HTTPConnection] = set()
        self._away_since: float | None = None
        self.term = 0

    def end(self) -> None:
        """Calls that wait for the coordinator to come back raise Ending from now on."""
        self._ending.set()

    def close(self) -> None:
        """Close all connections; no call is in progress."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def post(
        self, name: str, body: bytes, *, wait_s: float = 0.0, patience_s: float | None = None, deadline_s: float | None = None
    ) -> Answer:
        """The answer to POST /v1/`name`. `deadline_s`: of one try, where it is another than the caller's.

        Raises StaleEpoch or Refused as the coordinator does, RunFailed when it has been away for `patience_s`, Ending when told to.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline_s = (self.deadline_s if deadline_s is None else deadline_s) + wait_s
        began_s, pause_s = self._clock.now_s(), FIRST_PAUSE_S
        while True:
            try:
                answer = self._once(name, body, deadline_s)
            except _LOST as error:
                cause = str(error) or type(error).__name__
            else:
                if answer.status not in _AWAY:
                    self._back()
                    return self._judged(name, answer)
                cause = _words(answer)
            self._away(name, cause)
            gone_s = self._clock.now_s() - began_s
            if gone_s >= patience_s:
                raise RunFailed(f"the coordinator at {self.url} has not answered {name} for {gone_s:.0f} s: {cause}")
            self._pause(pause_s * self._rng.uniform(0.5, 1.5))
            if self._ending.is_set() or self._stopped():
                raise Ending(f"told to end while the coordinator at {self.url} was away: {cause}")
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _once(self, name: str, body: bytes, deadline_s: float) -> Answer:
        """One try; a kept connection that the coordinator has closed meanwhile is opened anew."""
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is not None:
            try:
                return self._exchange(connection, name, body, deadline_s)
            except TimeoutError:
                self._drop(connection)
                raise
            except _LOST:
                self._drop(connection)
        connection = self._mine.connection = self._connection(deadline_s)
        try:
            return self._exchange(connection, name, body, deadline_s)
        except _LOST:
            self._drop(connection)
            raise

    def _exchange(self, connection: http.client.HTTPConnection, name: str, body: bytes, deadline_s: float) -> Answer:
        connection.timeout = deadline_s
        if connection.sock is not None:
            connection.sock.settimeout(deadline_s)
        connection.request("POST", f"/v1/{name}", body, self._headers)
        response = connection.getresponse()
        content = response.read()
        self.term = int(response.headers.get(TERM_HEADER, self.term))
        again = response.headers.get("Retry-After")
        return Answer(
            status=response.status,
            body=content,
            retry_after_s=float(again) if again else None,
            sequence=int(response.headers.get(SEQUENCE_HEADER, 0)),
        )

    def _connection(self, deadline_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if self._ssl is not None:
            made = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=deadline_s, context=self._ssl)
        else:
            made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=deadline_s)
        with self._lock:
            self._connections.add(made)
        return made

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        with self._lock:
            self._connections.discard(connection)
        self._mine.connection = None

    def _judged(self, name: str, answer: Answer) -> Answer:
        if answer.status in (200, 204):
            return answer
        if answer.status == 410:
            raise StaleEpoch(_words(answer))
        raise Refused(f"the coordinator at {self.url} refuses {name}: {_words(answer)}", answer.status)

    def _away(self, name: str, cause: str) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = self._clock.now_s()
        self.events.emit(self._role, "coordinator_away", call=name, cause=cause)

    def _back(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self.events.emit(self._role, "coordinator_back", seconds=round(self._clock.now_s() - since, 3), term=self.term)


def _words(answer: Answer) -> str:
    """The refusal's own words."""
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"
