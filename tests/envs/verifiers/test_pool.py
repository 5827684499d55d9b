"""The pool keeps deadlines by force, tells crashes from answers, goes on meanwhile, and leaves no process behind."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from slipstream.core.errors import RunFailed
from slipstream.envs.verifiers.pool import Ending, Pool

JOBS = "tests.envs.verifiers.jobs:act"
LONG_S = 60.0  # never waited for
SHORT_S = 0.3


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(JOBS, workers=2, memory_bytes=1 << 28) as made:
        yield made


def echo(value: object) -> dict:
    return {"do": "echo", "value": value}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + LONG_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end, "a process was left behind"
        time.sleep(0.01)


def test_each_job_gets_its_own_answer_whatever_the_order(pool: Pool) -> None:
    values = [{"n": n, "text": "x" * (n * 5_000)} for n in range(40)]  # some beyond the size of a pipe
    futures = [pool.submit(echo(value), LONG_S) for value in reversed(values)]
    assert [future.result().value for future in reversed(futures)] == values


def test_a_worker_has_a_session_of_its_own(pool: Pool) -> None:
    pid, session = pool.run({"do": "pid"}, LONG_S).value
    assert session == pid != os.getsid(0)


def test_a_deadline_is_kept_by_force_and_neighbours_go_on(pool: Pool) -> None:
    stuck = pool.submit({"do": "count"}, SHORT_S)
    neighbours = [pool.run(echo(n), LONG_S).value for n in range(20)]
    reply = stuck.result()
    assert (reply.ending, reply.value, reply.detail) == (Ending.TIMEOUT, None, "no verdict in 0.3 s")
    assert neighbours == list(range(20))
    assert pool.run(echo("after"), LONG_S).value == "after"


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"do": "exit", "value": 3}, "exit status 3"),
        ({"do": "raise", "value": "no such thing"}, "ValueError: no such thing"),
        ({"do": "grow", "value": 1 << 29}, "MemoryError"),
    ],
)
def test_a_worker_that_dies_is_a_crash_with_its_last_words(pool: Pool, job: dict, told: str) -> None:
    reply = pool.run(job, LONG_S)
    assert reply.ending is Ending.CRASHED
    assert told in reply.detail
    assert pool.run(echo(1), LONG_S).value == 1


def test_what_a_job_prints_is_no_answer(pool: Pool) -> None:
    assert pool.run({"do": "print", "value": '{"right": true}'}, LONG_S).value is None
    assert pool.run(echo(2), LONG_S).value == 2


def test_an_event_loop_can_wait_for_many_jobs(pool: Pool) -> None:
    async def many() -> list[int]:
        replies = await asyncio.gather(*(pool.arun(echo(n), LONG_S) for n in range(10)))
        return [reply.value for reply in replies]

    assert asyncio.run(many()) == list(range(10))


def test_closing_ends_running_and_waiting_jobs_and_every_process() -> None:
    with Pool(JOBS, workers=1) as made:
        pids = [made.run({"do": "pid"}, LONG_S).value[0], made.run({"do": "fork"}, LONG_S).value]
        assert all(is_alive(pid) for pid in pids)
        running, waiting = (made.submit({"do": "sleep", "value": 3600}, 3600.0) for _ in range(2))
        made.close()
    assert [running.result().ending, waiting.result().ending] == [Ending.CRASHED, Ending.CRASHED]
    wait_until_gone(pids)
    with pytest.raises(RunFailed, match="closed"):
        made.submit(echo(1), LONG_S)


def test_a_worker_that_was_killed_from_outside_is_replaced(pool: Pool) -> None:
    pid = pool.run({"do": "pid"}, LONG_S).value[0]
    os.kill(pid, signal.SIGKILL)
    endings = [pool.run(echo(n), LONG_S).ending for n in range(4)]
    while Ending.CRASHED not in endings:  # one of them meets the dead worker; which one is for the threads to say
        assert len(endings) < 10_000, "nobody met the dead worker"
        endings.append(pool.run(echo(0), LONG_S).ending)
    endings += [pool.run(echo(n), LONG_S).ending for n in range(4)]
    assert endings.count(Ending.CRASHED) <= 1
    assert endings[-1] is Ending.DONE


def test_a_pool_that_cannot_start_says_why_for_each_job() -> None:
    with Pool("tests.envs.verifiers.jobs:unknown", workers=1) as made:
        reply = made.run(echo(1), LONG_S)
    assert reply.ending is Ending.CRASHED
    assert reply.detail.startswith("the worker did not start: AttributeError")
