"""The code verifier: `code` with a sandbox, rows in and outcomes out, blocking or not. An actor; see `verifier`.

Rows are as in the data sets: `response` and the fields of one style (`code_case`). Where the machine allows no isolation it refuses,
unless the environment variable `UNSAFE` is 1.
"""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.envs.verifiers.code import BODIES, grade_response
from slipstream.envs.verifiers.code_canaries import canaries
from slipstream.envs.verifiers.code_case import CodeCase, case_of, case_problem
from slipstream.envs.verifiers.verifier import Row, Verifier

UNSAFE = "SLIPSTREAM_UNSAFE_PROGRAMS"


class CodeJudge:
    """Judges answers, as many at once as the sandbox has places; hundreds may wait."""

    def __init__(self, box: Sandbox, at_once: int) -> None:
        self._box = box
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="code-judge")

    def submit(self, row: Row) -> Future[Outcome]:
        """See `verifier.Judge`."""
        return self._threads.submit(self.grade, row["response"], case_of(row))

    def grade(self, response: str, case: CodeCase) -> Outcome:
        """Judge one answer and wait. What fails in the sandbox itself is an outcome without a reward."""
        try:
            return grade_response(response, case, self._box.run).outcome()
        except RunFailed as error:
            return Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail=str(error))

    async def agrade(self, response: str, case: CodeCase) -> Outcome:
        """Judge one answer without holding up the event loop."""
        return await asyncio.wrap_future(self._threads.submit(self.grade, response, case))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


@contextmanager
def open_code(at_once: int) -> Iterator[CodeJudge]:
    """A judge that runs so many answers at once; nothing of them is left when the context ends. Raises RunFailed where nothing isolates."""
    with Sandbox(bodies=BODIES, at_once=at_once, weak=os.environ.get(UNSAFE) == "1") as box:
        judge = CodeJudge(box, at_once)
        try:
            yield judge
        finally:
            judge.close()


def problem(row: Row) -> str | None:
    """See `verifier.Verifier.problem`."""
    return case_problem(row)


CODE = Verifier(name="code", problem=problem, open=open_code, canaries=canaries)
