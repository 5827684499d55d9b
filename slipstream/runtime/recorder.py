"""What a run leaves behind while it goes: rows of metrics, events and evaluations, rollouts. An actor around telemetry's writers."""

from slipstream.core.clock import Clock
from slipstream.core.records import EvaluationResult
from slipstream.loop.learn import StepReport
from slipstream.telemetry.evaluations import evaluation_row
from slipstream.telemetry.events import EventLog
from slipstream.telemetry.jsonl import JsonlWriter
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.rollouts import write_batch
from slipstream.telemetry.run_directory import RunDirectory


class Recorder:
    """Writes and shows. `step` is called by the learner's thread, `evaluation` by the evaluator's."""

    def __init__(self, directory: RunDirectory, clock: Clock, progress: Progress) -> None:
        self._directory, self._clock, self._progress = directory, clock, progress
        self._metrics = JsonlWriter(directory.metrics)
        self._evaluations = JsonlWriter(directory.evaluations)
        self._event_rows = JsonlWriter(directory.events)
        self.events = EventLog(self._event_rows, clock)

    def step(self, report: StepReport) -> None:
        """One learner step: its rollouts first, so that a row of metrics always has them."""
        write_batch(self._directory.rollouts, report.batch, report.advantages.tolist())
        self._metrics.write(report.metrics)
        self._progress.step(report.metrics)

    def evaluation(self, result: EvaluationResult) -> None:
        self._evaluations.write(evaluation_row(result, round(self._clock.now_s(), 3)))
        self._progress.evaluation(result)

    def warm_start(self, step: int, total: int, loss: float) -> None:
        self.events.emit("learner", "warm_start", step=step, total=total, loss=round(loss, 5))
        self._progress.warm_start(step, total, loss)

    def close(self) -> None:
        for writer in (self._metrics, self._evaluations, self._event_rows):
            writer.close()
