"""Peers that lie, break off, stall or refuse: nothing unverified is ever seen, another source is tried, and every cause is told."""

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from slipstream.core.errors import RunFailed, UsageError
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.transports.opening import open_source
from tests.weights.serving import TOKEN, learner, params, peer, same_bits, served, served_by_flight, small_chunks, worker

STALL_S = 0.3  # of workers whose peers stall: short enough to wait for; an honest one that seems to stall is asked again
NOWHERE = "http://127.0.0.1:1"  # nobody listens there


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)


class Liar(ChunkStore):
    """Gives one wrong bit in every chunk."""

    def chunk(self, hashed: str) -> memoryview | None:
        found = super().chunk(hashed)
        return found and memoryview(bytes([found[0] ^ 1]) + found[1:].tobytes())


Behaviour = Callable[[socket.socket, threading.Event], None]


def answering(head: bytes, body: bytes = b"", then: Behaviour = lambda line, over: None) -> Behaviour:
    def behave(line: socket.socket, over: threading.Event) -> None:
        line.sendall(head + b"\r\n\r\n" + body)
        then(line, over)

    return behave


def silent(line: socket.socket, over: threading.Event) -> None:
    over.wait(20)


def dripping(line: socket.socket, over: threading.Event) -> None:
    while not over.wait(STALL_S / 10):
        line.sendall(b"x")


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 64"
BROKEN = {
    "truncated": (answering(OK, b"x" * 40), "truncated", "24 bytes early"),
    "half open": (silent, "stalled", "no byte for"),
    "stalled in the body": (answering(OK, b"x" * 40, silent), "stalled", "no byte for"),
    "a byte now and then": (answering(OK, then=dripping), "stalled", "not done within"),
    "another length": (answering(OK.replace(b"64", b"63"), b"x" * 63), "protocol", "63 bytes where the manifest says 64"),
    "no length": (answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"), "protocol", "with a length"),
    "more than it said": (answering(OK, b"x" * 99), "protocol", "too many"),
    "no head": (lambda line, over: line.sendall(b"x" * 40_000), "protocol", "no head"),
    "another protocol": (answering(b"220 mail.example ESMTP"), "protocol", "not an answer of HTTP"),
    "an error": (answering(b"HTTP/1.1 503 Busy\r\nContent-Length: 4", b"busy"), "protocol", "status 503: busy"),
    "closed at once": (lambda line, over: None, "unreachable", "ended before an answer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_peer_is_told_of_and_another_delivers(name: str) -> None:
    behaviour, cause, words = BROKEN[name]
    stalls = cause == "stalled"
    rules = {"stall_s": STALL_S, "rounds": 20} if stalls else {}
    rules["floor_bytes_s"] = 64 / (2 * STALL_S) if name == "a byte now and then" else 1.0
    with learner() as source, peer(behaviour) as broken, worker(connections=4, **rules) as sink:
        manifest = source.publish(0, params())
        assert sink.take(manifest, broken, source.url)
        assert same_bits(sink.store.get(0).params, params())
        faults = sink.events.of("weights_fault")
    told = [row for row in faults if row["source"] == broken and row["cause"] == cause and words in row["detail"]]
    assert told, faults
    assert sink.fetcher.counters[f"fault_{cause}"] >= len(told)
    assert stalls or {row["source"] for row in faults} == {broken}


@pytest.mark.parametrize("transport", [served, served_by_flight])
def test_a_peer_that_lies_is_found_out_and_alone_delivers_nothing(transport: Callable[..., contextlib.AbstractContextManager[str]]) -> None:
    lying = Liar(keep=4)
    with learner() as source, worker(store=lying) as relay, transport(lying) as liar, worker() as sink, worker() as other:
        manifest = source.publish(0, params())
        assert relay.take(manifest, source.url)
        assert not sink.take(manifest, liar)
        assert sink.store.newest() == -1
        assert set(sink.events.causes()) == {"corrupt"}
        assert "none of 1 sources delivers" in (sink.store.failure(0) or "")
        assert sink.events.of("weights_failed")[0]["version"] == 0
        with pytest.raises(RunFailed, match="corrupt"):
            sink.store.get(0)
        assert other.take(manifest, liar, source.url)
        assert same_bits(other.store.get(0).params, params())
        assert set(other.events.causes()) == {"corrupt"}
        assert sink.take(manifest, source.url)  # announced again, with a source that is honest
        assert sink.store.failure(0) is None


@pytest.mark.parametrize("transport", [served, served_by_flight])
def test_a_wrong_token_is_refused_and_told(transport: Callable[..., contextlib.AbstractContextManager[str]]) -> None:
    with learner() as source, transport(source.chunks) as url, worker(token="guess") as sink, worker(token="") as bare:
        manifest = source.publish(0, params())
        for one in (sink, bare):
            assert not one.take(manifest, url)
            assert set(one.events.causes()) == {"refused"}
    with served(source.chunks, token="") as open_to_all, worker(token="") as sink:
        assert sink.take(manifest, open_to_all)


def test_without_a_source_that_answers_the_version_fails_with_the_cause_and_by_its_deadline() -> None:
    with learner() as source, worker() as sink, worker(deadline_s=0.05, rounds=1000) as hurried, worker() as idle:
        manifest = source.publish(0, params())
        assert not sink.take(manifest, NOWHERE)
        assert set(sink.events.causes()) == {"unreachable"}
        assert not hurried.take(manifest, NOWHERE)
        assert "not done within 0.05 s; the last cause: http://127.0.0.1:1: unreachable" in (hurried.store.failure(0) or "")
        assert not idle.take(manifest)
        assert "no source was named" in (idle.store.failure(0) or "")


def test_faults_move_a_source_to_the_end_and_the_load_is_spread_over_the_others() -> None:
    class Counting(ChunkStore):
        asked = 0

        def chunk(self, hashed: str) -> memoryview | None:
            self.asked += 1
            return super().chunk(hashed)

    stores = [Counting(keep=4) for _ in range(3)]
    with learner() as source, contextlib.ExitStack() as stack:
        manifest = source.publish(0, params())
        urls = [NOWHERE]
        for store in stores:
            store.add(source.chunks.version(0, 0))
            urls.append(stack.enter_context(served(store)))
        sink = stack.enter_context(worker(connections=2))
        assert sink.take(manifest, *urls)
    assert len(sink.events.of("weights_fault")) <= 2  # one a connection at most, of many chunks
    asked = [store.asked for store in stores]
    assert min(asked) > sum(asked) / 6, asked


def test_closing_ends_a_fetch_that_waits_for_a_silent_peer() -> None:
    with learner() as source, peer(silent) as quiet, worker(stall_s=60.0) as sink:
        manifest = source.publish(0, params())
        sink.store.announce(manifest, [quiet])
        while not sink.fetcher._sources:
            threading.Event().wait(0.001)
        sink.store.close()
        assert sink.events.of("weights_failed")[0]["cause"].endswith("the fetch was stopped")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:80", "http://h\u00f6st"])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="weight source"):
        open_source(url, TOKEN, 1.0)
