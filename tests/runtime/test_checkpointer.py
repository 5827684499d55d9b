"""The writer beside the run: it holds nobody up, writes one at a time, tells what it wrote, and never fails in silence."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.core.clock import ManualClock
from slipstream.runtime.checkpointer import Checkpointer
from slipstream.telemetry.jsonl import JsonlWriter
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.checkpoint import newest_checkpoint

PATIENCE_S = 60.0


class Kept:
    """Events in a list."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, role: str, kind: str, **fields: Any) -> None:
        self.rows.append({"role": role, "kind": kind, **fields})

    def span(self, role: str, phase: str, start_s: float, end_s: float, **fields: Any) -> None:
        raise AssertionError


class Bench:
    """A checkpointer and all that it touches."""

    def __init__(self, path: Path, keep_best: bool = True) -> None:
        self.directory = RunDirectory.create(path / "run", "")
        self.events, self.oldest = Kept(), list[int]()
        clock = ManualClock()
        self.writer = Checkpointer(self.directory, clock, self.events, keep_best=keep_best, on_written=self.oldest.append)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.checkpoints.iterdir())


def fill(directory: Path) -> None:
    (directory / "file").write_bytes(b"12345")


def blocked(started: threading.Event, go_on: threading.Event) -> Callable[[Path], None]:
    def run(directory: Path) -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)
        fill(directory)

    return run


def test_nobody_waits_for_a_write_and_the_journal_is_kept_until_it_exists(tmp_path: Path) -> None:
    bench, started, go_on = Bench(tmp_path), threading.Event(), threading.Event()
    bench.writer.write(4, blocked(started, go_on), {"run_id": "r"})
    assert started.wait(PATIENCE_S)
    bench.writer.look()
    assert (bench.oldest, bench.events.rows) == ([], [])
    assert newest_checkpoint(bench.directory.checkpoints) is None
    go_on.set()
    bench.writer.finish()
    assert bench.oldest == [4]
    assert bench.events.rows == [{"role": "learner", "kind": "checkpoint", "step": 4, "seconds": 0.0, "bytes": 5}]
    found = newest_checkpoint(bench.directory.checkpoints)
    assert found is not None
    assert (found.step, dict(found.notes)) == (4, {"run_id": "r"})
    bench.writer.finish()  # nothing is in flight
    assert bench.oldest == [4]


def test_one_is_in_flight_and_the_next_waits_for_it(tmp_path: Path) -> None:
    bench, started, go_on, seen = Bench(tmp_path), threading.Event(), threading.Event(), list[list[str]]()
    bench.writer.write(1, blocked(started, go_on), {})

    def second(directory: Path) -> None:
        seen.append(bench.names())
        fill(directory)

    waiting = threading.Thread(target=lambda: bench.writer.write(2, second, {}))
    waiting.start()
    assert started.wait(PATIENCE_S)
    assert seen == []
    go_on.set()
    waiting.join(PATIENCE_S)
    bench.writer.finish()
    assert seen == [[".000002.partial", "000001"]]
    assert bench.oldest == [1, 1]


@pytest.mark.parametrize("look", ["look", "finish", "write"])
def test_what_a_write_failed_of_is_raised_once_at_the_next_look(tmp_path: Path, look: str) -> None:
    bench = Bench(tmp_path)
    bench.writer.write(1, fill, {})
    bench.writer.finish()

    def broken(directory: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    bench.writer.write(2, broken, {})
    bench.writer.wait()
    ask = {"look": bench.writer.look, "finish": bench.writer.finish, "write": lambda: bench.writer.write(3, fill, {})}[look]
    with pytest.raises(OSError, match="input/output error"):
        ask()
    assert bench.oldest == [1]
    assert bench.writer.finish() is None
    bench.writer.write(3, fill, {})
    bench.writer.finish()
    assert bench.names() == ["000001", "000003"]


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_best_evaluated_one_is_kept(tmp_path: Path, keep_best: bool) -> None:
    bench = Bench(tmp_path, keep_best)
    for step, score in enumerate((0.2, 0.8, 0.4, 0.3)):
        bench.writer.write(step, fill, {})
        bench.writer.finish()
        rows = JsonlWriter(bench.directory.evaluations)
        rows.write({"step": step, "pass@1": score})
        rows.close()
    assert bench.names() == ["000002", "000003", *(["best-000001"] if keep_best else [])]
    assert bench.oldest == [0, 0, 1, 2]  # a run goes on from the newest two alone
