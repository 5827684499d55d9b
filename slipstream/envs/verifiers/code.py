"""Verdicts on programs: the code of a response run in a cell against the checks of its task. Nothing the program says makes it pass.

For functions the tests run in a judge's interpreter of their own and see the returned values only (`code_judge`, `code_peer`). For
whole programs the output is compared here. Exit codes and printed words never count for an answer.
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.sandbox.records import Ended, Job, Limits, Stopped
from slipstream.envs.verifiers.code_case import CodeCase, Style
from slipstream.envs.verifiers.code_extract import extract_code

PROGRAM = "slipstream.envs.verifiers.code_program:main"
SUBJECT = "slipstream.envs.verifiers.code_subject:main"
JUDGE = "slipstream.envs.verifiers.code_judge:main"
BODIES = (PROGRAM, SUBJECT, JUDGE)
OUTPUT_BYTES = 1 << 20  # kept of a program's output beyond twice what is expected


class Reason(StrEnum):
    """Why an answer passes or fails. The last three say that nothing was judged."""

    OK = "ok"
    WRONG_ANSWER = "wrong_answer"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"  # the program used up its time; that is the program's fault
    MEMORY = "memory"
    CRASH = "crash"  # killed by a signal, or ended with an exit status
    DISK = "disk"
    SYNTAX = "syntax"
    MISSING_MODULE = "missing_module"  # the answer imports what is not there
    NO_CODE = "no_code"
    CHEAT = "cheat"  # it tried to decide the verdict itself
    NO_CHECK = "no_check"  # no check ran: the task verifies nothing
    LACKING = "lacking"  # the task's own text needs a module that is not there
    SLOW_TEST = "slow_test"  # the task's tests, not the program, used up the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one answer."""

    reason: Reason
    detail: str = ""  # for people
    checks: int = 0  # that ran and held
    seconds: float = 0.0  # wall-clock, of all runs

    @property
    def passed(self) -> bool:
        return self.reason is Reason.OK

    def outcome(self) -> Outcome:
        """Reward 1 or 0 where the answer was judged, a program's own timeout included; none where task or machine failed."""
        kinds = {
            Reason.OK: OutcomeKind.VALUE,
            Reason.NO_CODE: OutcomeKind.UNPARSEABLE,
            Reason.NO_CHECK: OutcomeKind.INFRASTRUCTURE,
            Reason.LACKING: OutcomeKind.INFRASTRUCTURE,
            Reason.SLOW_TEST: OutcomeKind.TIMEOUT,
        }
        kind = kinds.get(self.reason, OutcomeKind.WRONG)
        judged = kind not in (OutcomeKind.INFRASTRUCTURE, OutcomeKind.TIMEOUT)
        told = f"{self.reason}: {self.detail}" if self.detail else str(self.reason)
        return Outcome(
            kind=kind, reward=float(self.passed) if judged else None, style=self.reason, detail=f"{told} ({self.checks} checks held)"
        )


Run = Callable[[Job], Ended]


def grade_response(response: str, case: CodeCase, run: Run) -> Verdict:
    """The verdict on a response. `run` is `Sandbox.run`, whose RunFailed passes through: it is no verdict."""
    if not (case.io if case.style is Style.STDIN else case.test or case.tests):
        return Verdict(reason=Reason.NO_CHECK, detail="the task has no check")
    code = extract_code(response, case)
    if code is None:
        return Verdict(reason=Reason.NO_CODE, detail="no code in the response")
    return _grade_program(code, case, run) if case.style is Style.STDIN else _grade_functions(code, case, run)


def _grade_functions(code: str, case: CodeCase, run: Run) -> Verdict:
    token = secrets.token_hex(16)
    prelude = case.prelude
    program = {"token": token, "prelude": prelude, "code": code}
    judge = {"token": token, "prelude": prelude, "style": case.style, "setup": case.setup, "tests": case.tests, "test": case.test}
    judge |= {"entry_point": case.entry_point, "names": case.names}
    job = Job(program=SUBJECT, program_text=_text(program), judge=JUDGE, judge_text=_text(judge), limits=case.limits)
    return judged(run(job), case.limits)


def judged(ended: Ended, limits: Limits) -> Verdict:
    """What the judge said, in the light of how the program ended."""

    def verdict(reason: Reason, detail: str, checks: int = 0) -> Verdict:
        return Verdict(reason=reason, detail=detail, checks=checks, seconds=ended.seconds)

    if ended.killed_parent:
        return verdict(Reason.CHEAT, "it killed the process that runs it")
    if ended.stopped in (Stopped.MEMORY, Stopped.FLOOD, Stopped.PROCESSES):
        return verdict(*_stopped(ended.stopped, limits))
    if ended.stopped is Stopped.JUDGE or not ended.verdict:
        return verdict(Reason.SLOW_TEST, "the tests did not end")
    said: dict[str, Any] = json.loads(ended.verdict)
    name, detail, checks = said["reason"], said["detail"], said["checks"]
    if name == "slow_test":
        return verdict(Reason.SLOW_TEST, "the tests themselves use up the time")
    if name == "interrupted" and ended.exit_status is None:
        return verdict(*_stopped(Stopped.DEADLINE, limits))
    if name in ("gone", "interrupted"):
        return verdict(*_ended_early(ended.exit_status))
    if name == "missing_name":
        return verdict(Reason.LACKING, f"{detail}; the prelude imports it from a module that is not there")
    if name == Reason.WRONG_ANSWER and ended.exit_status == 0:
        return verdict(Reason.CHEAT, f"{detail}; told to fail, it ended as if it had not")
    if name == Reason.WRONG_ANSWER and ended.note:
        return verdict(Reason.CHEAT, f"{detail}; it looked for its tests")
    return verdict(Reason(name), detail, checks)


def _grade_program(code: str, case: CodeCase, run: Run) -> Verdict:
    """Every pair in turn, up to the first that fails."""
    seconds = 0.0
    for number, (given, wanted) in enumerate(case.io):
        limits = replace(case.limits, keep_bytes=OUTPUT_BYTES + 2 * len(wanted.encode()))
        ended = run(Job(program=PROGRAM, program_text=code.encode(errors="replace"), stdin=given.encode(), limits=limits))
        seconds += ended.seconds
        reason, detail = ran(ended, wanted, limits)
        if reason is not Reason.OK:
            return Verdict(reason=reason, detail=f"pair {number + 1}: {detail}", checks=number, seconds=seconds)
    return Verdict(reason=Reason.OK, checks=len(case.io), seconds=seconds)


def ran(ended: Ended, wanted: str, limits: Limits) -> tuple[Reason, str]:
    """What came of a whole program: it must end by itself, print what is wanted and end well."""
    if ended.killed_parent:
        return Reason.CHEAT, "it killed the process that runs it"
    if ended.stopped is not Stopped.NO:
        return _stopped(ended.stopped, limits)
    word, _, detail = ended.note.decode(errors="replace").partition(" ")
    if word in (Reason.EXCEPTION, Reason.MEMORY, Reason.DISK, Reason.SYNTAX, Reason.MISSING_MODULE):
        return Reason(word), detail
    status = ended.exit_status
    if status is None or status < 0:
        return _ended_early(status)
    if not same_output(ended.stdout.decode(errors="replace"), wanted):
        return Reason.WRONG_ANSWER, f"printed {ended.stdout[:60]!r}, want {wanted[:60]!r}"
    return (Reason.EXCEPTION, f"exit status {status}") if status else (Reason.OK, "")


def same_output(printed: str, wanted: str) -> bool:
    """Equal line by line, blanks at the ends of lines and blank lines at both ends aside."""

    def lines(text: str) -> list[str]:
        return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").split("\n")).strip("\n").split("\n")

    return lines(printed) == lines(wanted)


def _stopped(stopped: Stopped, limits: Limits) -> tuple[Reason, str]:
    if stopped is Stopped.MEMORY:
        return Reason.MEMORY, f"its processes together hold more than {limits.memory_mb} MB"
    if stopped is Stopped.PROCESSES:
        return Reason.CRASH, f"more than {limits.processes} processes"
    if stopped is Stopped.FLOOD:
        return Reason.TIMEOUT, f"it writes without end: more than {limits.flood_bytes >> 20} MiB"
    return Reason.TIMEOUT, f"it did not end within {limits.seconds:g} s"


def _ended_early(status: int | None) -> tuple[Reason, str]:
    """What an end before the checks were done means."""
    signals = {-24: Reason.TIMEOUT, -25: Reason.DISK}  # SIGXCPU, SIGXFSZ
    if status is None:
        return Reason.CRASH, "it closed its channel"
    if status < 0:
        return signals.get(status, Reason.CRASH), f"killed by signal {-status}"
    if status == 0:
        return Reason.CHEAT, "it ended with status 0 before its checks were done"
    return Reason.CRASH, f"it ended with status {status} before its checks were done"


def _text(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
