"""The recorder raises alarms from what it writes, once, also when a run goes on."""

from pathlib import Path
from unittest.mock import Mock

from slipstream.core.clock import ManualClock
from slipstream.core.records import EvaluationResult
from slipstream.runtime.recorder import Recorder
from slipstream.telemetry.jsonl import read_jsonl
from slipstream.telemetry.progress import Progress
from slipstream.telemetry.run_directory import RunDirectory


def evaluated(step: int, score: float) -> EvaluationResult:
    return EvaluationResult(step=step, task="t", n=256, pass_at_1=score, ci=(0.0, 1.0))


def test_a_drift_is_told_once_and_a_run_that_goes_on_remembers_the_peak(tmp_path: Path) -> None:
    directory, progress = RunDirectory.create(tmp_path / "run", ""), Mock(spec=Progress)
    for part in [(0.5, 0.8), (0.6, 0.6, 0.6, 0.5)]:
        recorder = Recorder(directory, ManualClock(), progress)
        done = len(read_jsonl(directory.evaluations))
        for index, score in enumerate(part):
            recorder.evaluation(evaluated(10 * (done + index), score))
        recorder.close()
    (alarm,) = [row for row in read_jsonl(directory.events) if row["kind"] == "alarm"]
    assert alarm["detail"] == "held-out score drifts: 0.600, 0.600, 0.600 at steps 20 to 40, after 0.800 at step 10"
    assert [call.args for call in progress.note.call_args_list] == [(f"alarm: {alarm['detail']}",)]
