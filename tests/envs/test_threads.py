"""Threads are started as needed, a job that never comes back is left behind, and nothing waits for it."""

import threading

import pytest

from slipstream.envs.threads import Threads

PATIENCE_S = 60.0


def test_results_and_failures_come_through_and_few_threads_do_many_jobs() -> None:
    threads, names = Threads(2, "few"), set[str]()

    def job(number: int) -> int:
        names.add(threading.current_thread().name)
        return 10 // number

    futures = [threads.submit(lambda number=number: job(number)) for number in (5, 0, 2, 1)]
    assert [future.result(PATIENCE_S) for future in (futures[0], *futures[2:])] == [2, 5, 10]
    with pytest.raises(ZeroDivisionError):
        futures[1].result(PATIENCE_S)
    assert 1 <= len(names) <= 2
    threads.close()
    assert threads.submit(lambda: 1).cancelled()


def test_an_abandoned_job_gives_its_place_to_another_thread() -> None:
    gate, begun, meeting = threading.Event(), threading.Event(), threading.Barrier(2)

    def hang() -> None:
        begun.set()
        assert gate.wait(PATIENCE_S)

    threads = Threads(2, "two")
    hung = threads.submit(hang)
    assert begun.wait(PATIENCE_S)
    threads.abandon(hung)
    both = [threads.submit(lambda: meeting.wait(PATIENCE_S)) for _ in range(2)]  # they need two threads beside the one left behind
    assert {future.result(PATIENCE_S) for future in both} == {0, 1}
    gate.set()
    hung.result(PATIENCE_S)  # it ends by itself
    assert threads.submit(lambda: "more").result(PATIENCE_S) == "more"
    threads.close()


def test_a_job_that_nobody_wants_any_more_never_begins() -> None:
    gate, ran = threading.Event(), list[int]()
    threads = Threads(1, "one")
    first = threads.submit(lambda: gate.wait(PATIENCE_S))
    second, third = threads.submit(lambda: ran.append(2)), threads.submit(lambda: ran.append(3))
    threads.abandon(second)
    gate.set()
    assert first.result(PATIENCE_S)
    third.result(PATIENCE_S)
    assert (ran, second.cancelled()) == ([3], True)
    threads.close()
