"""Verdicts through a coordinator: a real one and real graders, each a process, asked by this one as a sampler would.

The task is arithmetic, whose verdicts cost next to nothing: what is measured is the way there and back. Called by `bench grading`.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np

from slipstream.config.load import load_config
from slipstream.core.clock import SystemClock
from slipstream.core.errors import RunFailed
from slipstream.core.ids import ticket_id
from slipstream.core.ports import Environments
from slipstream.core.records import FinishReason, ModelTurn
from slipstream.envs.build import build_task
from slipstream.envs.host import EnvironmentHost
from slipstream.envs.task import Task
from slipstream.runtime.join.address import Address
from slipstream.runtime.join.caller import Caller
from slipstream.runtime.join.grading import RemoteGrading
from slipstream.runtime.join.membership import Applicant, Seat
from slipstream.runtime.processes.health import health

IN_FLIGHT = 512  # replies without a verdict: as a sampler of so many slots has
REPLIES, ALONE = 20_000, 200
WAIT_S = 120.0
RECIPE = "arithmetic"


def remote_figures(graders: tuple[int, ...] = (1, 2)) -> Iterator[dict[str, Any]]:
    """A row for verdicts in this process, and one for each number of graders."""
    config = load_config(RECIPE, [])
    task = build_task(config)
    with closing(EnvironmentHost(task, clock=SystemClock())) as host:
        yield {"verifier": RECIPE, "how": "in one process", **_speed(host, task)}
    for count in graders:
        with _run(count) as seat, closing(RemoteGrading(seat)) as remote:
            yield {"verifier": RECIPE, "how": f"through a coordinator, {count} graders", **_speed(remote, task)}


def _speed(environments: Environments, task: Task) -> dict[str, Any]:
    _judge(environments, task, 0, 2 * IN_FLIGHT)
    began_s = time.perf_counter()
    _judge(environments, task, 2 * IN_FLIGHT, REPLIES)
    seconds = time.perf_counter() - began_s
    alone: list[float] = []
    for number in range(ALONE):
        began_s = time.perf_counter()
        _judge(environments, task, 2 * IN_FLIGHT + REPLIES + number, 1)
        alone.append(time.perf_counter() - began_s)
    return {"judged": REPLIES, "rows_per_second": round(REPLIES / seconds, 1), "alone_ms": round(float(np.median(alone)) * 1e3, 2)}


def _judge(environments: Environments, task: Task, first: int, replies: int) -> None:
    """So many, `IN_FLIGHT` of them at a time."""
    asked = judged = 0
    while judged < replies:
        while asked < replies and asked - judged < IN_FLIGHT:
            index = first + asked
            turn = ModelTurn(token_ids=np.zeros(0, np.int32), text=f":{index}", finish_reason=FinishReason.STOP, room=0)
            environments.answer((ticket_id(index), 0), task.prompt(index), turn)
            asked += 1
        if not environments.wait(WAIT_S):
            raise RunFailed(f"no verdict came in {WAIT_S:.0f} s")
        judged += len(environments.answered())


@contextmanager
def _run(graders: int) -> Iterator[Seat]:
    """A coordinator and its graders; the seat is a sampler's."""
    command = [sys.executable, "-m", "slipstream.cli.main"]
    settings = ("--port", "0", "--json", "--lease", "600", "--set", "grading.on=graders")
    with ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory())
        begin = [*command, "coordinator", RECIPE, "--run-dir", f"{run_dir}/run", *settings]
        started = subprocess.Popen(begin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        stack.callback(_end, started)
        assert started.stdout is not None
        url = json.loads(started.stdout.readline())["url"]
        for number in range(graders):
            joined = subprocess.Popen([*command, "grader", "--join", url, "--name", f"g{number}"], stderr=subprocess.DEVNULL)
            stack.callback(_end, joined)
        until_s = time.monotonic() + WAIT_S
        while (here := health(url)) is None or len(here.names) < graders:
            if time.monotonic() > until_s:
                raise RunFailed(f"{graders} graders did not join within {WAIT_S:.0f} s")
            time.sleep(0.05)
        caller = Caller(Address(url=url), role="bench", clock=SystemClock(), rng=np.random.default_rng(0))
        yield Seat(caller, Applicant(kind="sampler", incarnation="bench", capabilities={}))


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
