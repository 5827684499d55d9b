"""Shows what a run in other processes is doing, from the files that it writes. Called by `processes.train`."""

from collections.abc import Callable
from pathlib import Path

from slipstream.telemetry.evaluations import evaluation_from_row
from slipstream.telemetry.jsonl import Row, read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.run_directory import RunDirectory


class Follower:
    """`look` shows rows that were not there before."""

    def __init__(self, directory: RunDirectory, progress: Progress) -> None:
        self._progress = progress
        self._metrics, self._evaluations = _Tail(directory.metrics), _Tail(directory.evaluations)

    def look(self) -> None:
        self._metrics.each(self._progress.step)
        self._evaluations.each(lambda row: self._progress.evaluation(evaluation_from_row(row)))


class _Tail:
    """Rows with a `step`, each once; a file that is cut back and written again shows nothing twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _state(path)
        self._shown = {row["step"] for row in read_jsonl(path)}

    def each(self, show: Callable[[Row], None]) -> None:
        state = _state(self._path)
        if state == self._state:
            return
        self._state = state
        for row in read_jsonl(self._path):
            if row["step"] not in self._shown:
                self._shown.add(row["step"])
                show(row)


def _state(path: Path) -> tuple[int, int]:
    """Changes whenever the file does."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_size
