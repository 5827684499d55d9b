"""What a run leaves behind while it goes: rows of metrics, events and evaluations, rollouts. An actor around telemetry's writers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.core.clock import Clock
from slipstream.core.records import EvaluationResult
from slipstream.loop.alarms import WINDOW, Score, drift, raised, share_right, too_good, windowed
from slipstream.loop.learn import StepReport
from slipstream.telemetry.evaluations import evaluation_from_row, evaluation_row
from slipstream.telemetry.events import EventLog, Events
from slipstream.telemetry.jsonl import JsonlWriter, read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.rollouts import write_batch
from slipstream.telemetry.run_directory import RunDirectory


class Recorder:
    """Writes and shows. `step` is called by the learner's thread, `evaluation` by the evaluator's."""

    def __init__(self, directory: RunDirectory, clock: Clock, progress: Progress, events: Events | None = None) -> None:
        """`events`: where they go; None: to the directory's file, which only one process may write."""
        self._directory, self._clock, self._progress = directory, clock, progress
        self._metrics = JsonlWriter(directory.metrics)
        self._evaluations = JsonlWriter(directory.evaluations)
        self._writers = [self._metrics, self._evaluations]
        if events is None:
            self._writers.append(JsonlWriter(directory.events))
            events = EventLog(self._writers[-1], clock)
        self.events = events
        self._rewards = [score for row in read_jsonl(directory.metrics) if (score := _reward(row))]
        self._held_out = [_right(evaluation_from_row(row)) for row in read_jsonl(directory.evaluations)]

    def step(self, report: StepReport) -> None:
        """One learner step: its rollouts first, so that a row of metrics always has them."""
        write_batch(self._directory.rollouts, report.batch, report.advantages.tolist())
        self._metrics.write(report.metrics)
        self._progress.step(report.metrics)
        if score := _reward(report.metrics):
            self._rewards.append(score)
            self._alarm(raised("training reward", self._rewards, (too_good,)))
            if len(self._rewards) % WINDOW == 0:
                self._alarm(raised("training reward", windowed(self._rewards), (drift,)))

    def evaluation(self, result: EvaluationResult) -> None:
        self._evaluations.write(evaluation_row(result, round(self._clock.now_s(), 3)))
        self._progress.evaluation(result)
        self._held_out.append(_right(result))
        self._alarm(raised("held-out score", self._held_out))

    def _alarm(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self.events.emit("supervisor", "alarm", detail=sentence)
            self._progress.note(f"alarm: {sentence}")

    def warm_start(self, step: int, total: int, loss: float) -> None:
        self.events.emit("learner", "warm_start", step=step, total=total, loss=round(loss, 5))
        self._progress.warm_start(step, total, loss)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def _reward(row: Mapping[str, Any]) -> Score | None:
    """Of one learner step; None where it had no rollouts."""
    if row.get("reward_mean") is None or not row.get("samples"):
        return None
    return Score(step=row["step"], value=row["reward_mean"], error=max(row["reward_std"], 0.05) / math.sqrt(row["samples"]))


def _right(result: EvaluationResult) -> Score:
    return share_right(result.step, result.pass_at_1, result.n)
