"""The directory of one run: where each file lies, who may write there, and how it is cut back when a run goes on.

Holds no content itself; the ledger, the loop and the writers of this room fill it.
"""

from pathlib import Path

from slipstream.core.errors import UsageError
from slipstream.telemetry.atomic import atomic_write_text, remove_temporaries
from slipstream.telemetry.jsonl import drop_torn_line, read_jsonl, rewrite_jsonl
from slipstream.telemetry.run_lock import RunLock

_CONFIG_NAME = "run.toml"


class RunDirectory:
    """Paths of one run. Get one with `create` or `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path / "run.lock")

    @classmethod
    def create(cls, path: Path, config_toml: str) -> "RunDirectory":
        """Make the directory of a new run. `UsageError` when there is a run in it already."""
        if (path / _CONFIG_NAME).exists():
            running = cls(path)
            running.lock()  # a live run says so itself
            running.release()
            raise UsageError(f"{path} already holds a run; go on with it by --resume or choose another --run-dir")
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; choose another --run-dir")
        run = cls(path)
        for directory in (run.path, run.rollouts, run.checkpoints, run.logs):
            directory.mkdir(parents=True, exist_ok=True)
        atomic_write_text(run.config, config_toml)  # last: its presence says that the directory holds a run
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The directory of a run that exists. `UsageError` when there is none."""
        if not path.is_dir():
            raise UsageError(f"{path} is not a directory; give the directory of a run")
        if not (path / _CONFIG_NAME).is_file():
            raise UsageError(f"{path} holds no run: there is no {_CONFIG_NAME} in it")
        return cls(path)

    def lock(self) -> None:
        """Keep the directory to this process for as long as it lives. `UsageError` when another one has it."""
        self._lock.acquire()

    def holder(self) -> str | None:
        """The process that has the directory locked; None where it is free."""
        return self._lock.holder()

    def release(self) -> None:
        """Give the directory free again."""
        self._lock.release()

    @property
    def config(self) -> Path:
        """The effective configuration, whole (TOML)."""
        return self.path / _CONFIG_NAME

    @property
    def journal(self) -> Path:
        """The ledger's journal (SQLite)."""
        return self.path / "journal.sqlite"

    @property
    def metrics(self) -> Path:
        """One JSON object a learner step."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """Everything that happened, with time and role."""
        return self.path / "events.jsonl"

    @property
    def status(self) -> Path:
        """What everyone does now, or did last."""
        return self.path / "status.json"

    @property
    def evaluations(self) -> Path:
        """One JSON object an evaluation."""
        return self.path / "eval.jsonl"

    @property
    def rollouts(self) -> Path:
        """Directory of rollouts with their fate, one Parquet file a step."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Directory of checkpoints, one directory a checkpoint."""
        return self.path / "checkpoints"

    @property
    def trace(self) -> Path:
        """Chrome trace of the run."""
        return self.path / "trace.json"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.path / "report.html"

    @property
    def logs(self) -> Path:
        """Directory of log files, one a role."""
        return self.path / "logs"

    def truncate_after(self, step: int, *, events: bool = True) -> None:
        """Cut the run back to the state after `step` learner steps: what came later is about to be written again.

        Rows with a greater `step` go, and so do rollout files numbered `step` and up (file s holds the batch that step s + 1
        of the metrics trained on). Events stay, since they did happen; only a torn last line goes, unless another process writes
        them (`events` = False). Idempotent.
        """
        for path in (self.metrics, self.evaluations):
            rows = read_jsonl(path)
            kept = [row for row in rows if row["step"] <= step]
            if len(kept) < len(rows):
                rewrite_jsonl(path, kept)
            drop_torn_line(path)
        if events:
            drop_torn_line(self.events)
        for path in self.rollouts.glob("*.parquet"):
            if int(path.stem) >= step:
                path.unlink()
        for directory in (self.path, self.rollouts):
            remove_temporaries(directory)
