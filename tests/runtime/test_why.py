"""`slipstream why` on runs that live, have ended, were killed, and have only just begun."""

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import slipstream
from slipstream.cli.main import app
from slipstream.runtime.status_keeper import StatusKeeper
from slipstream.runtime.why import TELLING, reasons
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.telemetry.status import read_status, write_status
from tests.telemetry.test_waits import moment, role

HOLDER = """
import sys
from pathlib import Path
from slipstream.telemetry.run_directory import RunDirectory
RunDirectory(Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "[run]\n")


def told(directory: RunDirectory) -> str:
    found = CliRunner().invoke(app, ["why", str(directory.path)])
    assert found.exit_code == 0
    return found.stdout


def test_a_live_run_tells_its_waits_and_their_root(directory: RunDirectory) -> None:
    """The lock is held by another process, as a run's would be."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == "locked\n"
        assert told(directory).strip() == "the run has just begun: nothing is known yet"
        write_status(directory.status, moment(role("learner", "wait"), role("sampler-1", "grade", 40.0), sampler_1=2))
        text = told(directory)
        assert f"process {holder.pid}" in text
        assert "batch 3 has 2 of its 4 groups; it works on 2" in text
        assert text.splitlines()[-1] == "sampler-1 is in phase 'grade', for 40.0 s now"
        found = json.loads(CliRunner().invoke(app, ["why", str(directory.path), "--json"]).stdout)
        assert found["explanation"]["waits"][0]["on"] == "sampler-1"
        assert found["process"] == str(holder.pid)
        holder.stdin.close()


def test_a_run_that_nobody_works_on_tells_what_ended_it(directory: RunDirectory) -> None:
    write_status(directory.status, moment(role("learner", "step")))
    assert "no process works on the run; go on with: slipstream train --resume" in told(directory)
    (directory.logs / "supervisor.log").write_text("Traceback\nRunFailed: no space left on device\n")
    died = {"time": 2.0, "role": "supervisor", "kind": "role_died", "name": "sampler-1", "signal": "SIGKILL"}
    alarm = {"time": 3.0, "role": "supervisor", "kind": "alarm", "detail": "drift"}
    directory.events.write_text("".join(json.dumps(row) + "\n" for row in (died, alarm)))
    text = told(directory)
    assert "2.0 s  supervisor: role_died, name sampler-1, signal SIGKILL" in text
    assert "it ended by RunFailed: no space left on device; go on with" in text
    assert "3.0 s  supervisor: alarm, detail drift" in text


def test_a_finished_run_says_so(undisturbed: Callable[[str], Path]) -> None:
    run = undisturbed("sync")
    assert reasons(run, 0.0).verdict == "the run is over: it has finished"
    last = read_status(run / "status.json")
    assert last is not None
    assert {one.role: one.phase for one in last.roles} == {"learner": "ended", "sampler-0": "ended", "evaluator": "ended"}
    assert last.flow is not None
    assert (last.flow.version, last.flow.tickets["trained"]) == (12, 48)


def test_every_kind_of_event_that_is_told_is_emitted_somewhere() -> None:
    """Under exactly that name."""
    source = "".join(path.read_text() for path in Path(slipstream.__file__).parent.rglob("*.py") if path.name != "why.py")
    assert [kind for kind in TELLING if not re.search(rf'(emit|add)\([^)]*?"{kind}"', source)] == []


def test_no_run_is_a_usage_error(tmp_path: Path) -> None:
    assert "is not a directory" in str(CliRunner().invoke(app, ["why", str(tmp_path / "none")]).exception)


def test_the_keeper_writes_moments_and_the_last_one(tmp_path: Path) -> None:
    moments = (moment(role("learner", "step", float(second))) for second in itertools.count())
    keeper = StatusKeeper(tmp_path / "status.json", lambda: next(moments), every_s=0.01)
    while not (found := read_status(tmp_path / "status.json")) or found.roles[0].phase_s < 2:
        time.sleep(0.005)
    keeper.close()
    last = read_status(tmp_path / "status.json")
    assert last is not None
    assert last.roles[0].phase_s == next(moments).roles[0].phase_s - 1


def test_what_the_keeper_fell_over_is_raised_at_its_end(tmp_path: Path) -> None:
    keeper = StatusKeeper(tmp_path / "absent" / "status.json", lambda: moment(), every_s=0.01)
    with pytest.raises(FileNotFoundError):
        keeper.close()
