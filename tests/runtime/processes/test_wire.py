"""A whole run whose every way goes through a proxy that cuts, corrupts and silences connections: it ends as an undisturbed one does."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipstream.config.load import load_config
from slipstream.runtime.chaos.faults import Fault, FaultKind, to_coordinator, weights_of
from slipstream.runtime.chaos.promises import broken_promises
from slipstream.runtime.chaos.running import disturbed_run
from tests.runtime.processes.supervised import LEASE_S
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, environment, rows


def fault(kind: FaultKind, target: str, after_step: int) -> Fault:
    return Fault(kind=kind, target=target, after_step=after_step, wait_s=0.0, seconds=LEASE_S + 1)


def test_a_run_over_broken_connections_ends_with_the_weights_of_an_undisturbed_one(
    undisturbed: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed("lagged1")
    monkeypatch.setenv("SLIPSTREAM_CACHE", environment(tmp_path / "run")["SLIPSTREAM_CACHE"])
    schedule = [
        fault(FaultKind.CUT, weights_of("learner"), 1),
        fault(FaultKind.CORRUPT_CHUNK, weights_of("learner"), 2),
        fault(FaultKind.CUT, to_coordinator("learner"), 3),
        fault(FaultKind.HALF_OPEN, to_coordinator("sampler-0"), 4),
    ]
    config, run_dir = load_config(str(TINY), MODES["lagged1"]), tmp_path / "run"
    run = disturbed_run(config, run_dir, schedule, samplers=1, lease_s=LEASE_S, seed=1)
    assert_same_end(run_dir, expected)
    assert broken_promises(config, run_dir) == []
    assert [(one.fault.kind, one.struck, one.recovery_s is not None) for one in run.done] == [(one.kind, True, True) for one in schedule]
    assert run.deaths == 0
    events = rows(run_dir / "events.jsonl")
    told = [(row["role"], row["cause"]) for row in events if row["kind"] == "weights_fault"]
    assert told[:2] == [("sampler-0", "truncated"), ("sampler-0", "corrupt")]
    assert [row for row in events if row["kind"] == "lease_ended" and row["worker"] == "sampler-0"]
    assert [row for row in events if row["kind"] == "coordinator_away" and row["role"] == "sampler"]


def other_versions(run_dir: Path) -> None:
    altered(run_dir / "rollouts" / "000005.parquet", "versions", lambda versions: [0] * len(versions))


def same_sample(run_dir: Path) -> None:
    shutil.copy(run_dir / "rollouts" / "000004.parquet", run_dir / "rollouts" / "000005.parquet")


def step_missing(run_dir: Path) -> None:
    kept = [row for row in rows(run_dir / "metrics.jsonl") if row["step"] != 7]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))


def journal_short(run_dir: Path) -> None:
    with closing(sqlite3.connect(run_dir / "journal.sqlite")) as database:
        database.execute("delete from event where seq >= (select max(seq) from event where kind = 'Trained')")
        database.commit()


def altered(path: Path, column: str, change: Callable[[list[int]], list[int]]) -> None:
    """The first rollout with another value in a column."""
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[0] = change(values[0])
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, column, pa.array(values, table.schema.field(column).type)), path)


def test_a_broken_promise_is_named(undisturbed: Callable[[str], Path], tmp_path: Path) -> None:
    config, whole = load_config(str(TINY), MODES["lagged1"]), undisturbed("lagged1")
    assert broken_promises(config, whole) == []
    for number, (break_it, words) in enumerate(
        [
            (other_versions, "step 6 trained on samples of tickets [20] that are older than 1"),
            (same_sample, "step 6 trained on tickets [16, 17, 18, 19], which are not in its batch"),
            (step_missing, "metrics.jsonl has steps [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]"),
            (journal_short, "the journal ends at version 11 with 12 batches, not 12"),
        ]
    ):
        run_dir = Path(shutil.copytree(whole, tmp_path / str(number)))
        break_it(run_dir)
        assert words in broken_promises(config, run_dir)
