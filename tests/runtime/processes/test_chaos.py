"""Seeded schedules of all faults over a longer run, and what a person does to one: the slow sister of `test_faults` and `test_wire`."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.runtime.chaos.faults import FaultKind, schedule
from slipstream.runtime.chaos.promises import broken_promises
from slipstream.runtime.chaos.running import Disturbed, disturbed_run
from slipstream.runtime.chaos.small_disk import NoSmallDisk, SmallDisk, small_disk
from slipstream.runtime.replay import Replay
from slipstream.telemetry.run_directory import RunDirectory
from tests.runtime.processes.supervised import LEASE_S, Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, environment, finish, run, sets, start, tiny

STEPS = 60
LONGER = (
    f"run.steps={STEPS}",
    "warm_start.stages=[{steps=200,worked_share=1.0},{steps=20,worked_share=0.2}]",  # rewards at every step
    "evaluation.every_steps=30",
)
ROLES = ("coordinator", "learner", "sampler-0", "sampler-1")
FAULTS = 10

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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk | None]:
    """None where none can be made; then no disk is filled."""
    try:
        with small_disk(tmp_path, 64 << 20) as made:
            yield made
    except NoSmallDisk:
        yield None


@pytest.fixture
def disturbed(disk: SmallDisk | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Disturbed]:
    """A run of a mode after which the promises hold; every fault found something to hurt, and was recovered from."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", environment(tmp_path / "run")["SLIPSTREAM_CACHE"])

    def run_it(mode: str, seed: int) -> Disturbed:
        config = load_config(str(TINY), [*MODES[mode], *LONGER])
        kinds = [kind for kind in FaultKind if disk is not None or kind is not FaultKind.FULL_DISK]
        planned = schedule(seed, FAULTS, steps=STEPS, samplers=2, lease_s=LEASE_S, kinds=kinds)
        found = disturbed_run(config, tmp_path / "run", planned, samplers=2, lease_s=LEASE_S, seed=seed, disk=disk)
        assert broken_promises(config, found.run_dir) == []
        assert [one.fault for one in found.done] == planned
        assert all(one.struck for one in found.done)
        return found

    return run_it


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "lagged1"])
def test_deterministic_modes_end_with_the_weights_of_an_undisturbed_run(
    mode: str, seed: int, reference: Callable[[str], Path], disturbed: Callable[[str, int], Disturbed]
) -> None:
    assert_same_end(disturbed(mode, seed).run_dir, reference(mode), STEPS)


@pytest.mark.parametrize("seed", [1, 2])
def test_in_flight_the_promises_hold_and_the_run_comes_out_again(seed: int, disturbed: Callable[[str, int], Disturbed]) -> None:
    found = disturbed("inflight2", seed)
    config = load_config(str(TINY), [*MODES["inflight2"], *LONGER])
    repeated = list(Replay(RunDirectory.open(found.run_dir), config, None).run())
    assert [one.step for one in repeated] == list(range(1, STEPS + 1))
    assert any(one.weights for one in repeated)


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
