"""The proxy between a real server of weights and a real source: what it does to a connection is seen as what it is."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from slipstream.core.clock import SystemClock
from slipstream.runtime.chaos.proxy import Proxy
from slipstream.runtime.processes.weight_server import WeightServer
from slipstream.weights.chunks import ChunkStore
from slipstream.weights.transports.http_source import HttpSource
from slipstream.weights.transports.source import Deadline, FaultKind, FetchFault, Landing

DATA = bytes(range(256)) * 1024
PATIENCE_S = 30.0


class OneChunk(ChunkStore):
    """Has one chunk, by any name but `none`."""

    def chunk(self, hashed: str) -> memoryview | None:
        return None if hashed == "none" else memoryview(DATA)


class Way:
    """From a source through the proxy to the server."""

    def __init__(self, stack: ExitStack, seed: int) -> None:
        self.proxy = Proxy(seed)
        stack.callback(self.proxy.close)
        server = WeightServer(host="127.0.0.1", port=0, token=None, tls=None)
        stack.callback(server.close)
        server.start(OneChunk(keep=1))
        self.port = self.proxy.route("weights", int(server.url.rpartition(":")[2]))
        self._stack = stack

    def source(self, stall_s: float = PATIENCE_S) -> HttpSource:
        return self._stack.enter_context(closing(HttpSource(f"http://127.0.0.1:{self.port}", "", stall_s=stall_s)))

    def kinds(self) -> list[str]:
        return [strike.kind for strike in self.proxy.strikes()]


def fetched(source: HttpSource, name: str = "some") -> bytes:
    found = bytearray(len(DATA))
    source.chunk(name, Landing(memoryview(found)), Deadline(SystemClock(), PATIENCE_S))
    return bytes(found)


def fault(source: HttpSource, name: str = "some") -> FaultKind:
    with pytest.raises(FetchFault) as found:
        fetched(source, name)
    return found.value.kind


@pytest.fixture
def way() -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(stack, 1)


def test_it_passes_everything_on_until_told_otherwise(way: Way) -> None:
    source = way.source()
    assert [fetched(source), fetched(source)] == [DATA, DATA]
    assert fault(source, "none") is FaultKind.GONE
    assert way.kinds() == []


def test_a_cut_ends_an_answer_in_its_body_once(way: Way) -> None:
    source = way.source()
    assert fetched(source) == DATA
    way.proxy.cut("weights")
    assert fault(source, "none") is FaultKind.GONE  # a refusal has no body that was asked for
    assert fault(source) is FaultKind.TRUNCATED
    assert fetched(source) == DATA
    assert way.kinds() == ["cut"]


def test_a_corrupted_answer_differs_in_one_bit_of_its_body(way: Way) -> None:
    source = way.source()
    way.proxy.corrupt("weights")
    found = fetched(source)
    assert sum((one ^ other).bit_count() for one, other in zip(found, DATA, strict=True)) == 1
    assert fetched(source) == DATA
    assert way.kinds() == ["corrupt"]


def test_where_it_hurts_is_a_function_of_the_seed() -> None:
    def wrong(seed: int) -> int:
        with ExitStack() as stack:
            way = Way(stack, seed)
            way.proxy.corrupt("weights")
            found = fetched(way.source())
            return next(at for at, (one, other) in enumerate(zip(found, DATA, strict=True)) if one != other)

    assert len({wrong(seed) for seed in (1, 2, 3)}) > 1


def test_half_open_connections_stay_open_for_good_and_say_nothing(way: Way) -> None:
    old = way.source(stall_s=0.2)
    assert fetched(old) == DATA
    way.proxy.half_open("weights", 1000.0)
    assert fault(old) is FaultKind.STALLED  # of a connection that was kept
    assert fault(way.source(stall_s=0.2)) is FaultKind.STALLED  # of a new one
    with socket.create_connection(("127.0.0.1", way.port), timeout=0.2) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            line.recv(1)
    way.proxy._routes["weights"].dead_until_s = 0.0  # the time is over
    assert fetched(way.source()) == DATA
    assert way.kinds() == ["half_open"]


def test_a_server_that_is_not_there_is_no_server(way: Way) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nowhere = way.proxy.route("nowhere", port)
    with closing(HttpSource(f"http://127.0.0.1:{nowhere}", "", stall_s=PATIENCE_S)) as source:
        assert fault(source) is FaultKind.UNREACHABLE


def test_a_delay_is_of_every_piece_and_ends(way: Way) -> None:
    way.proxy.delay("weights", 0.05)
    clock = SystemClock()
    assert fetched(way.source()) == DATA
    assert clock.now_s() >= 0.1  # question and answer
    way.proxy.delay("weights", 0.0)
    assert fetched(way.source()) == DATA
    assert way.kinds() == ["delay"]
