"""The run as a Chrome trace (also read by Perfetto): a process a role, a thread a sampler slot, rollouts and phases as slices."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.telemetry.atomic import atomic_write_text
from slipstream.telemetry.lanes import COMPLETION_LETTERS, PROMPT_LETTERS, clipped
from slipstream.telemetry.reading import version_runs
from slipstream.telemetry.run_data import RunData, load_run
from slipstream.telemetry.run_directory import RunDirectory

Event = dict[str, Any]

_PHASES_THREAD = 0  # of every process; slot s is thread s + 1
_FACTS = frozenset({"time", "role", "kind", "phase", "start", "end"})  # keys of a row that are not arguments


def write_trace(run_directory: Path) -> Path:
    """Write trace.json of the run in `run_directory`; returns its path. Works on a run that is unfinished."""
    run = load_run(run_directory)
    path = RunDirectory.open(run_directory).trace
    trace = {"displayTimeUnit": "ms", "traceEvents": list(trace_events(run))}
    atomic_write_text(path, json.dumps(trace, separators=(",", ":"), allow_nan=False))
    return path


def trace_events(run: RunData) -> Iterator[Event]:
    """Names of the lanes, then all slices and instants. Times are microseconds of the run's clock."""
    samplers = set(run.rollouts.texts("sampler_id"))
    roles = sorted(samplers | {str(row["role"]) for row in run.events if "role" in row}, key=lambda role: (role in samplers, role))
    processes = {role: number for number, role in enumerate(roles, start=1)}
    for role, number in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": role}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
        yield _thread_name(number, _PHASES_THREAD, "phases")
    slots = sorted(set(zip(run.rollouts.texts("sampler_id"), run.rollouts.column("slot").tolist(), strict=True)))
    for role, slot in slots:
        yield _thread_name(processes[role], slot + 1, f"slot {slot}")
    yield from _rows(run, processes)
    yield from _rollouts(run, processes)


def _thread_name(process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def _rows(run: RunData, processes: dict[str, int]) -> Iterator[Event]:
    """Spans as slices, everything else that has a time as instants."""
    for row in run.events:
        place = {
            "pid": processes.get(str(row.get("role")), 0),
            "tid": _PHASES_THREAD,
            "args": {k: v for k, v in row.items() if k not in _FACTS},
        }
        if row.get("kind") == "span" and row.get("end") is not None:
            yield {"ph": "X", "name": row["phase"], **_times(row["start"], row["end"]), **place}
        elif row.get("kind") not in ("span", "warm_start") and row.get("time") is not None:
            yield {"ph": "i", "s": "p", "name": row["kind"], "ts": round(row["time"] * 1e6, 1), **place}


def _rollouts(run: RunData, processes: dict[str, int]) -> Iterator[Event]:
    rollouts = run.rollouts
    texts = {name: rollouts.texts(name) for name in ("sampler_id", "prompt_text", "completion_text", "fate", "outcome")}
    numbers = {name: rollouts.column(name).tolist() for name in ("slot", "step", "started_s", "finished_s", "reward")}
    for row in range(len(rollouts)):
        versions = rollouts.versions.row(row)
        kept = [int(version) for version in versions[version_runs(versions)]]
        reward = numbers["reward"][row]
        yield {
            "ph": "X",
            "name": f"v{kept[0]}" if len(kept) == 1 else f"v{kept[0]} to v{kept[-1]}",
            "pid": processes[texts["sampler_id"][row]],
            "tid": numbers["slot"][row] + 1,
            **_times(numbers["started_s"][row], numbers["finished_s"][row]),
            "args": {
                "versions": kept,
                "tokens": len(versions),
                "step": numbers["step"][row] + 1,
                "age": int(rollouts.ages[row]),
                "fate": texts["fate"][row],
                "outcome": texts["outcome"][row],
                "reward": reward if math.isfinite(reward) else None,
                "prompt": clipped(texts["prompt_text"][row], PROMPT_LETTERS),
                "completion": clipped(texts["completion_text"][row], COMPLETION_LETTERS),
            },
        }


def _times(start_s: float, end_s: float) -> dict[str, float]:
    return {"ts": round(start_s * 1e6, 1), "dur": round(max(0.0, end_s - start_s) * 1e6, 1)}
