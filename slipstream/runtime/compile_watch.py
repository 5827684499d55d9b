"""Programs compiled in the middle of a run: a shape that was not foreseen, and seconds that nobody meant to wait. Called by `train`."""

from collections.abc import Mapping

from slipstream.engine.programs import copy_pages, decode, prefill
from slipstream.models.numerics import Program
from slipstream.telemetry.events import Events
from slipstream.train.update import accumulate, score, values

PROGRAMS: Mapping[str, Program] = {
    "copy_pages": copy_pages,
    "prefill": prefill,
    "decode": decode,
    "score": score,
    "values": values,
    "accumulate": accumulate,
}


class CompileWatch:
    """Emits an event `compiled` for each program with more compiled forms than when it was looked at before.

    The first look takes everything as foreseen: it comes after the first step, when warm-up, self-test and step have compiled all.
    """

    def __init__(self, events: Events, programs: Mapping[str, Program] = PROGRAMS) -> None:
        self._events, self._programs = events, programs
        self._seen: dict[str, int] = {}

    def look(self) -> None:
        found = {name: program.compiled() for name, program in self._programs.items()}
        for name, count in found.items():
            if more := count - self._seen.get(name, count):
                self._events.emit("supervisor", "compiled", program=name, times=more)
        self._seen = found
