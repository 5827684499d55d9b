"""Seeded schedules of kills and freezes over a longer run: the slow sister of `test_faults`."""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.core.clock import ManualClock
from slipstream.ledger.ledger import Ledger
from slipstream.ledger.state import Policy
from tests.ledger.rollouts import NumberedPrompts
from tests.runtime.processes.supervised import LEASE_S, Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, finish, rows, run, sets, start, tiny

STEPS = 60
LONGER = (
    f"run.steps={STEPS}",
    "warm_start.stages=[{steps=200,worked_share=1.0},{steps=20,worked_share=0.2}]",  # rewards at every step
    "evaluation.every_steps=30",
)
ROLES = ("coordinator", "learner", "sampler-0", "sampler-1")
FAULTS = 5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The embedded run of a mode."""
    made: dict[str, Path] = {}

    def directory(mode: str) -> Path:
        if mode not in made:
            made[mode] = tmp_path_factory.mktemp(f"reference-{mode}") / "run"
            tiny(made[mode], (*MODES[mode], *LONGER))
        return made[mode]

    return directory


def disturb(one: Supervised, seed: int) -> None:
    """Kill or freeze somebody at each of a few steps. A learner goes back to its checkpoint, so that the same steps come again."""
    rng = random.Random(seed)
    for _ in range(FAULTS):
        one.wait_steps(rng.randrange(1, STEPS // 2))
        role, freezes = rng.choice(ROLES), rng.random() < 0.4
        if not freezes:
            one.kill(role)
        elif role == "coordinator":
            one.send(role, signal.SIGSTOP)
            time.sleep(LEASE_S + 1)  # the length of the fault
            one.send(role, signal.SIGCONT)
        else:
            one.freeze(role)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "lagged1"])
def test_deterministic_modes_end_with_the_weights_of_an_undisturbed_run(
    mode: str, seed: int, reference: Callable[[str], Path], supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervised(tmp_path / "run", (*MODES[mode], *LONGER))
    disturb(one, seed)
    one.finish()
    assert_same_end(tmp_path / "run", reference(mode), STEPS)


@pytest.mark.parametrize("seed", [1, 2])
def test_in_flight_the_invariants_hold_by_the_journal(seed: int, supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    one = supervised(tmp_path / "run", (*MODES["inflight2"], *LONGER))
    disturb(one, seed)
    one.finish()
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == list(range(1, STEPS + 1))
    assert max(row["age_max"] for row in rows(tmp_path / "run" / "metrics.jsonl")) <= 2
    with closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite")) as journal:
        batches = [body for (body,) in journal.execute("select body from event where kind = 'Batched' order by seq")]
    assert len(batches) == STEPS  # fixed once, whoever asked again
    policy = Policy(prompts_per_step=4, group_size=4, eta=2, pinned=False, steps=STEPS)
    ledger = Ledger(tmp_path / "run" / "journal.sqlite", policy, NumberedPrompts(), ManualClock())  # plays it, checking every event
    state, counters = ledger.state, ledger.counters()
    ledger.close()
    assert state.version == state.batched == STEPS
    assert sum(state.balance().values()) == state.issued
    samples = counters["samples"]
    assert samples["issued"] == samples["batched"] + samples["live"] + sum(samples["dropped"].values())
    assert samples["batched"] == STEPS * 16
    trained = Counter(row for row in _trained(tmp_path / "run"))
    assert len(trained) == STEPS * 16
    assert set(trained.values()) == {1}


def _trained(run_dir: Path) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    columns = ["ticket_index", "sample_index", "fate"]
    found = [row for path in sorted((run_dir / "rollouts").iterdir()) for row in pq.read_table(path, columns=columns).to_pylist()]
    return [(row["ticket_index"], row["sample_index"]) for row in found if row["fate"] == "trained"]


def test_ctrl_c_drains_and_the_run_goes_on_in_processes_or_embedded(
    reference: Callable[[str], Path], supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervised(tmp_path / "run", (*MODES["lagged1"], *LONGER))
    one.wait_steps(5)
    one.process.send_signal(signal.SIGINT)
    errors = one.finish(130)
    assert "stopped by SIGINT after step" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    steps = one.steps()
    assert one.events("checkpoint")[-1]["step"] == steps  # taken on the way out
    assert {row["worker"] for row in one.events("left")} == {"learner-0", "sampler-0", "sampler-1"}
    again = supervised(tmp_path / "run", (), 1, "--resume")
    again.wait_steps(steps + 5)
    again.process.send_signal(signal.SIGTERM)
    again.finish(130)
    run(tmp_path / "run", "--resume")
    assert_same_end(tmp_path / "run", reference("lagged1"), STEPS)


def test_a_sampler_told_to_go_leaves_politely_and_another_takes_over(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    one = supervised(tmp_path / "run", (*MODES["inflight2"], *LONGER))
    one.wait_steps(5)
    one.send("sampler-0", signal.SIGTERM)
    one.wait("its farewell", lambda: bool(one.events("leaving", cause="SIGTERM")))
    one.finish()
    (farewell,) = one.events("leaving", cause="SIGTERM")
    assert one.events("left", worker=farewell["role"])
    assert one.events("role_died", name="sampler-0", exit_code=130)


def test_a_supervisor_that_is_killed_takes_its_roles_along(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    one = supervised(tmp_path / "run", (*MODES["lagged1"], *LONGER))
    one.wait_steps(3)
    pids = [one.pid(role) for role in ROLES]
    one.process.kill()
    one.process.communicate()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a role outlives its supervisor"
        time.sleep(0.05)
    finish(start(tmp_path / "run", "--resume"))


def test_another_live_run_in_the_directory_is_one_clear_error(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    one = supervised(tmp_path / "run", (*MODES["lagged1"], *LONGER))
    one.wait_steps(1)
    assert "is in use by process" in run(tmp_path / "run", "--resume", code=2)
    assert "is in use by process" in run(tmp_path / "run", str(TINY), *sets(MODES["sync"]), "--on", "processes", code=2)
    one.finish()
