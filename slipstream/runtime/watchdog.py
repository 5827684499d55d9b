"""A deadline on every phase: a thread that looks whether a role has been in its present one for too long. No silent wait anywhere.

A role that waits is not looked at: it hangs at another's end, and that one has a deadline. Used by embedded runs and role processes.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence

from slipstream.loop.phases import Phases
from slipstream.runtime.worker import Worker
from slipstream.telemetry.events import Events

LOOK_S = 1.0
AT_REST = ("", "wait", "ended")
GRACE_S = 60.0  # for a run that was told to end to do so by itself
STACK_CHARACTERS = 8_000


class Watchdog:
    """`limits`: seconds by phase, and `default` for all others. `bark` is called once a phase that is overdue, with the cause."""

    def __init__(
        self,
        phases: Sequence[Phases],
        limits: Mapping[str, float],
        default: float,
        events: Events,
        bark: Callable[[str], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._phases, self._limits, self._default, self._events, self._bark = phases, limits, default, events, bark
        self._look_s = look_s
        self._told: dict[str, str] = {}  # by role, the phase that was overdue
        self._ending = threading.Event()
        self._worker = Worker("watchdog", self._run, lambda: None)
        self._worker.start()

    def close(self) -> None:
        self._ending.set()
        self._worker.join(2 * self._look_s)
        self._worker.check()

    def _run(self) -> None:
        while not self._ending.wait(self._look_s):
            for one in self._phases:
                self._look(one)

    def _look(self, one: Phases) -> None:
        phase, silent_s = one.current, one.silent_s()
        limit_s = self._limits.get(phase, self._default)
        if phase in AT_REST or silent_s <= limit_s:
            self._told.pop(one.role, None)
            return
        if self._told.get(one.role) == phase:
            return
        self._told[one.role] = phase
        cause = f"{one.role} has been in phase {phase!r} for {silent_s:.0f} s without getting on; the limit is {limit_s:.0f} s (watchdog)"
        self._events.emit(one.role, "overdue", phase=phase, seconds=round(silent_s, 1), limit_s=limit_s, stacks=stacks())
        self._bark(cause)


def stacks() -> dict[str, str]:
    """What each thread of this process does now, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()  # pyright: ignore[reportPrivateUsage] - the only way there is
    return {names.get(ident, str(ident)): "".join(traceback.format_stack(frame))[-STACK_CHARACTERS:] for ident, frame in frames}


def end_process(cause: str, grace_s: float = GRACE_S) -> None:
    """End this process with code 1 if it is still here after so long: a call into the device cannot be interrupted."""

    def end() -> None:
        print(f"slipstream: {cause}; the process did not end by itself and is ended", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(grace_s, end)
    timer.daemon = True
    timer.start()
