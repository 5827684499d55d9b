"""While the caller works on what `step` returned, the device works on the next dispatch; and nothing else is different for that."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.records import FinishReason
from slipstream.engine import engine as engine_module
from slipstream.engine.rows import SamplingTable
from slipstream.engine.running import Ended, InFlight
from tests.engine.small import PER_DISPATCH, SLOTS, assert_same, drain, engine, request

LONG = [request(f"long{index}", [1 + index], new=20, stop_ids=()) for index in range(3)]


def test_the_next_dispatch_is_launched_before_any_sample_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def told(word: str, function):
        def call(*arguments, **options):
            log.append(word)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(engine_module, "decode", told("launch", engine_module.decode))
    monkeypatch.setattr(InFlight, "arrived", told("arrive", InFlight.arrived))
    monkeypatch.setattr(Ended, "sample", told("sample", Ended.sample))
    running = engine()
    running.submit(LONG[0])
    running.submit(request("short", [3], new=PER_DISPATCH, stop_ids=()))
    assert running.step() == []
    assert log == ["launch"]
    assert running.drawn(LONG[0].key) == ([], [], [])
    (short,) = running.step()
    assert log == ["launch", "arrive", "launch", "sample"]
    assert len(short.completion_ids) == len(running.drawn(LONG[0].key)[0]) == PER_DISPATCH
    drain(running)
    assert log.count("launch") == log.count("arrive") == -(-20 // PER_DISPATCH)  # none for nobody


def test_a_request_can_be_aborted_and_asked_again_while_its_dispatch_is_in_flight() -> None:
    """Another sample in the old one's row and under its name is not given what the dispatch drew; neighbours never know."""
    expected, running = drain(engine(), LONG), engine()
    again = replace(LONG[1], seed=5, temperature=0.5)
    for one in LONG:
        running.submit(one)
    running.step()
    running.step()
    aborted = running.abort(LONG[1].key)
    assert aborted is not None
    assert aborted.finish_reason is FinishReason.ABORTED
    np.testing.assert_array_equal(aborted.completion_ids, expected["long1"].completion_ids[:PER_DISPATCH])
    running.submit(again)
    found = drain(running)
    assert_same(found["long1"], drain(engine(), [again])["long1"])
    for name in ("long0", "long2"):
        assert_same(found[name], expected[name])
    running.submit(LONG[0])
    running.step()
    running.abort(LONG[0].key)  # nobody is left; the dispatch in flight is taken in by the next step
    assert_same(drain(running, [LONG[2]])["long2"], expected["long2"])


def test_a_pause_takes_in_what_is_in_flight_and_launches_nothing() -> None:
    running = engine()
    running.submit(LONG[0])
    running.step()
    running.pause()
    for _ in range(3):
        assert running.step() == []
        assert len(running.drawn(LONG[0].key)[0]) == PER_DISPATCH
    running.resume()
    assert_same(drain(running)["long0"], drain(engine(), LONG[:1])["long0"])


def test_what_a_dispatch_in_flight_reads_is_never_changed() -> None:
    """Buffers that jax takes as they are (it does where they are aligned) would be changed under the device's hands."""
    table = SamplingTable(SLOTS, 17)
    for name, array in vars(table).items():
        if isinstance(array, np.ndarray):
            room = np.zeros(array.nbytes + 64, np.uint8)
            aligned = room[-room.ctypes.data % 64 :][: array.nbytes].view(array.dtype).reshape(array.shape)
            aligned[...] = array
            setattr(table, name, aligned)
    sent = table.rows(range(SLOTS), SLOTS)
    wishes = replace(LONG[0], seed=3, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1, stop_ids=(1,), min_new_tokens=1)
    for slot in range(SLOTS):
        table.seat(slot, replace(wishes, logit_bias=((3, 1.0),)))
    before, after = (one.rows(range(SLOTS), SLOTS) for one in (SamplingTable(SLOTS, 17), table))
    for name in before.__slots__:
        np.testing.assert_array_equal(getattr(sent, name), getattr(before, name))
        assert not np.array_equal(getattr(after, name), getattr(before, name)), name
