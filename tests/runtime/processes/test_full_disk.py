"""A disk that fills up under a run of several processes: the cause is said, and the run goes on once there is room, or with --resume."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.runtime.chaos.faults import Fault, FaultKind
from slipstream.runtime.chaos.running import disturbed_run
from slipstream.runtime.chaos.small_disk import NoSmallDisk, SmallDisk, small_disk
from tests.runtime.processes.supervised import LEASE_S, Supervised
from tests.runtime.processes.test_faults import assert_same_end
from tests.runtime.runs import MODES, TINY, environment, run

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path, 32 << 20) as made:
            yield made
    except NoSmallDisk as error:
        pytest.skip(f"needs the right to mount a small file system: {error}")


def test_the_coordinator_says_the_cause_and_the_run_goes_on_once_there_is_room(
    undisturbed: Callable[[str], Path], supervised: Callable[..., Supervised], disk: SmallDisk
) -> None:
    expected = undisturbed("lagged1")
    one = supervised(disk.path / "run", MODES["lagged1"])
    one.wait_steps(2)
    pid = one.pid("coordinator")
    disk.fill()
    one.wait("the end of the coordinator", lambda: not Path(f"/proc/{pid}").exists())
    disk.release()
    errors = one.finish()
    told = [line for line in errors.splitlines() if line.startswith("coordinator died: exit code 1: ")]
    assert told
    assert "no space left on device" in told[0]
    assert one.events("role_died", name="coordinator")[0]["disk_full"]
    assert_same_end(one.run_dir, expected)


def test_a_learner_on_a_full_disk_of_its_own_goes_on_from_its_checkpoint_once_there_is_room(
    undisturbed: Callable[[str], Path], disk: SmallDisk, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed("lagged1")
    run_dir, learner_dir = tmp_path_factory.mktemp("coordinator") / "run", disk.path / "learner"
    monkeypatch.setenv("SLIPSTREAM_CACHE", environment(run_dir)["SLIPSTREAM_CACHE"])
    config = load_config(str(TINY), MODES["lagged1"])
    schedule = [Fault(kind=FaultKind.FULL_DISK, target="learner", after_step=2, wait_s=0.0, seconds=0.0)]
    run = disturbed_run(config, run_dir, schedule, samplers=1, lease_s=LEASE_S, seed=1, disk=disk, learner_dir=learner_dir)
    (done,) = run.done
    assert "learner died, exit code 1: no space left on device while writing" in done.detail
    assert "coordinator" not in done.detail
    assert_same_end(learner_dir, expected)


def test_a_disk_that_stays_full_ends_the_run_with_its_cause_and_resume_goes_on(
    undisturbed: Callable[[str], Path], supervised: Callable[..., Supervised], disk: SmallDisk
) -> None:
    expected = undisturbed("lagged1")
    one = supervised(disk.path / "run", MODES["lagged1"])
    one.wait_steps(2)
    disk.fill()
    errors = one.finish(1)
    assert "died 6 times in a row, the last time by exit code 1: no space left on device" in errors
    assert "Traceback" not in errors
    disk.release()
    run(one.run_dir, "--resume", "--on", "processes")
    assert_same_end(one.run_dir, expected)
