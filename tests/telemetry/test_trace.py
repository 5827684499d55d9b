"""The Chrome trace: a lane a role and slot, every rollout and span once."""

import json
from pathlib import Path

from slipstream.telemetry.rollouts import read_rollouts
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.trace import write_trace
from tests.telemetry.synthetic import Shape, make_run


def test_every_rollout_and_span_is_a_slice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Shape(steps=6, rollouts_per_step=16, slots=2))
    path = write_trace(run.path)
    assert path == run.trace
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["coordinator", "learner", "runtime", "sampler-0", "sampler-1"]
    slices = [event for event in events if event["ph"] == "X"]
    boxes = [event for event in slices if event["tid"] > 0]
    table = read_rollouts(run.rollouts)
    assert len(boxes) == table.num_rows
    assert [box["args"]["completion"] for box in boxes] == table["completion_text"].to_pylist()
    assert [box["args"]["versions"] for box in boxes] == [sorted(set(versions)) for versions in table["versions"].to_pylist()]
    assert {(names[event["pid"]], event["name"]) for event in slices if event["tid"] == 0} >= {("learner", "step"), ("sampler-1", "load")}
    assert all(event["dur"] >= 0 for event in slices)
    assert {event["name"] for event in events if event["ph"] == "i"} == {
        *("run_started", "run_finished", "publish", "load"),
        *("ratio", "quarantined"),
    }


def test_a_run_without_events_or_rollouts(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", "")
    assert json.loads(write_trace(tmp_path / "run").read_text())["traceEvents"] == []
