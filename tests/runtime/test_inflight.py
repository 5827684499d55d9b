"""The in-flight mode with real processes: ages within the bound, versions mixed in samples, nothing lost or trained twice after a kill."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from tests.runtime.runs import MODES, TINY, rows, run, sets, signal_after, start

STEPS, PROMPTS, GROUP, ETA = 12, 4, 4, 2


def trained(run_dir: Path) -> list[dict]:
    columns = ["step", "fate", "ticket_index", "sample_index", "prompt_id", "versions"]
    return [row for path in sorted((run_dir / "rollouts").iterdir()) for row in pq.read_table(path, columns=columns).to_pylist()]


def assert_accountable(run_dir: Path) -> None:
    """Exactly the planned steps; every ticket of the run trained exactly once, whole; no token above the bound."""
    assert [row["step"] for row in rows(run_dir / "metrics.jsonl")] == list(range(1, STEPS + 1))
    found = trained(run_dir)
    counts = Counter((row["ticket_index"], row["sample_index"]) for row in found)
    assert counts == {(ticket, sample): 1 for ticket in range(STEPS * PROMPTS) for sample in range(GROUP)}
    assert all(row["step"] - min(row["versions"]) <= ETA for row in found)
    assert all(row["step"] >= max(row["versions"]) for row in found)


def test_every_sample_is_trained_once_within_the_age_bound(undisturbed: Callable[[str], Path]) -> None:
    assert_accountable(undisturbed("inflight2"))


def test_samplers_run_ahead_of_the_learner(undisturbed: Callable[[str], Path]) -> None:
    assert max(row["age_max"] for row in rows(undisturbed("inflight2") / "metrics.jsonl")) >= 1


def test_after_a_kill_nothing_is_lost_or_trained_twice(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(killed, str(TINY), *sets(MODES["inflight2"]))
    signal_after(process, killed, 5, signal.SIGKILL)
    process.communicate()
    run(killed, "--resume")
    assert_accountable(killed)
    resumed = [row for row in rows(killed / "events.jsonl") if row["kind"] == "resume"]
    assert [row["step"] for row in resumed] == [3]


def test_the_report_and_the_trace_are_written(undisturbed: Callable[[str], Path]) -> None:
    directory = undisturbed("inflight2")
    assert "<html" in (directory / "report.html").read_text()[:2000].lower()
    assert (directory / "trace.json").stat().st_size > 0
