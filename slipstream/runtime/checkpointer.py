"""Writes checkpoints while the run goes on: one thread, at most one checkpoint in flight. An actor around `train.checkpoint`.

The learner's thread hands over what is to be written, as immutable arrays, and takes its next step. What the writer died of is raised
at the next look, so that no run goes on for long without being able to keep what it learns.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.errors import RunFailed
from slipstream.runtime.worker import Worker
from slipstream.telemetry.events import Events
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.checkpoint import oldest_step, write_checkpoint

PATIENCE_S = 3_600.0  # a disk that takes longer for one checkpoint is taken for gone


class Checkpointer:
    """Called by the learner's thread only. `on_written` is called in it, with the oldest step that a resume may now need."""

    def __init__(
        self, directory: RunDirectory, clock: Clock, events: Events, *, keep_best: bool, on_written: Callable[[int], None]
    ) -> None:
        self._directory, self._clock, self._events = directory, clock, events
        self._keep_best, self._on_written = keep_best, on_written
        self._writing: Worker | None = None

    def write(self, step: int, fill: Callable[[Path], None], notes: Mapping[str, Any]) -> None:
        """Begin to write; `fill` is called in the writer's thread. Waits for the one before, if that is still being written."""
        self.finish()
        self._writing = Worker("checkpointer", lambda: self._write(step, fill, notes), lambda: None)
        self._writing.start()

    def look(self) -> None:
        """Raise what a write failed of; take note of one that is done. Does not wait."""
        if self._writing is not None and self._writing.join(0):
            done, self._writing = self._writing, None
            done.check()
            self._on_written(oldest_step(self._directory.checkpoints))

    def finish(self) -> None:
        """Wait for the one in flight, then `look`. Raises RunFailed when the disk does not answer."""
        self.wait()
        self.look()

    def wait(self) -> None:
        """Wait for the one in flight and raise nothing of its own but that it does not end."""
        if self._writing is not None and not self._writing.join(PATIENCE_S):
            raise RunFailed(f"a checkpoint was not written within {PATIENCE_S:.0f} s; is the disk of {self._directory.path} there?")

    def _write(self, step: int, fill: Callable[[Path], None], notes: Mapping[str, Any]) -> None:
        started = self._clock.now_s()
        written = write_checkpoint(self._directory.checkpoints, step, fill, notes, scores=self._scores())
        size = written.size_bytes if written else 0
        self._events.emit("learner", "checkpoint", step=step, seconds=round(self._clock.now_s() - started, 3), bytes=size)

    def _scores(self) -> dict[int, float] | None:
        """Held-out score by step, as far as evaluations are made."""
        return {row["step"]: row["pass@1"] for row in read_jsonl(self._directory.evaluations)} if self._keep_best else None
