"""The supervisor over small programs: how deaths are told, restarts bounded, and who is left is ended."""

import os
import signal
import sys
from pathlib import Path

import pytest

from slipstream.core.errors import RunFailed, UsageError
from slipstream.runtime.processes import child, supervisor
from slipstream.runtime.processes.child import Child
from slipstream.runtime.processes.supervisor import Role, Supervisor, free_port
from slipstream.runtime.stop import StopFlag

# answers /health for as long as `learner.done` is not there, then ends well; the run's version is the length of a file; notes go to another
COORDINATOR = """
import http.server, json, pathlib, sys, threading
folder = pathlib.Path(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        steps = folder / "steps"
        version = steps.stat().st_size if steps.exists() else 0
        self.answer(json.dumps({"names": ["learner"], "version": version}).encode())
        (folder / f"told-{version}").touch()
    def do_POST(self):
        with (folder / "notes").open("ab") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])) + b"\\n")
        self.answer(b"{}")
    def log_message(self, *arguments): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
import time
while not (folder / "learner.done").exists(): time.sleep(0.01)
"""


def program(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", source, *arguments]


def supervised(folder: Path, learner: str, sampler: str = "import time; time.sleep(1000)", coordinator: str = COORDINATOR) -> Supervisor:
    (folder / "logs").mkdir()
    port = free_port()
    roles = [
        Role(name="coordinator", command=program(coordinator, str(port), str(folder))),
        Role(name="learner", command=program(learner, str(folder))),
        Role(name="sampler-0", command=program(sampler)),
    ]
    return Supervisor(folder, f"http://127.0.0.1:{port}", roles, StopFlag())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_S", "LOOK_S", "LISTEN_S"):
        monkeypatch.setattr(supervisor, name, 0.01)


def test_a_role_that_dies_is_started_again_and_its_end_is_told(tmp_path: Path) -> None:
    """The learner dies twice, once by a signal, and then does its work; a sampler that is left is told to go."""
    learner = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
tries = folder / "tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
print("slipstream: try", len(tries.read_text()), flush=True)
if len(tries.read_text()) == 1: sys.exit(1)
if len(tries.read_text()) == 2: os.kill(os.getpid(), signal.SIGSEGV)
(folder / "learner.done").touch()
"""
    assert supervised(tmp_path, learner).run()
    notes = (tmp_path / "notes").read_text()
    assert '"kind": "role_died", "fields": {"name": "learner", "exit_code": 1, "signal": null' in notes
    assert '"exit_code": null, "signal": "SIGSEGV"' in notes
    assert '"last_lines": ["slipstream: try 2"]' in notes
    assert (tmp_path / "logs" / "learner.log").read_text().splitlines() == [f"slipstream: try {number}" for number in (1, 2, 3)]


def test_a_role_that_dies_again_and_again_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    dies = "import sys; print('slipstream: no memory left'); sys.exit(1)"
    with pytest.raises(
        RunFailed, match=r"learner died 6 times in a row, the last time by exit code 1: no memory left\nlog: logs/learner.log"
    ):
        supervised(tmp_path, dies).run()


def test_deaths_between_which_the_run_gets_on_are_not_in_a_row(tmp_path: Path) -> None:
    steps = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with (folder / "steps").open("a") as file: file.write("x")
version = (folder / "steps").stat().st_size
while not (folder / f"told-{version}").exists(): time.sleep(0.01)
if version == 9: (folder / "learner.done").touch()
sys.exit(version < 9)
"""
    assert supervised(tmp_path, steps).run()
    assert (tmp_path / "notes").read_text().count('"role_died"') == 8


def test_an_end_on_a_full_disk_is_told_as_one_though_its_log_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "FULL_BYTES", 1 << 60)
    for words, told in (
        ("print('slipstream: no space left on device while writing x'); sys.exit(1)", "no space left on device while writing x"),
        ("print('  File whatever'); sys.exit(1)", "no space left on device, not even for its log"),
    ):
        one = Child(program(f"import sys; {words}"), tmp_path / "log")
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        ended = one.poll()
        assert ended is not None
        assert ended.disk_full
        assert ended.cause == f"exit code 1: {told}"


def test_a_wrong_call_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such model"):
        supervised(tmp_path, "", coordinator="import sys; print('slipstream: no such model'); sys.exit(2)").run()
    assert (tmp_path / "logs" / "coordinator.log").read_text().count("no such model") == 1


def test_told_to_stop_everybody_leaves_and_the_coordinator_goes_last(tmp_path: Path) -> None:
    polite = """
import signal, sys, time
def leave(*_): print("bye", flush=True); sys.exit(130)
signal.signal(signal.SIGTERM, leave)
print("hi", flush=True)
time.sleep(1000)
"""
    one = supervised(tmp_path, polite, polite)
    logs = [tmp_path / "logs" / f"{name}.log" for name in ("learner", "sampler-0")]

    def stop_when_all_are_there() -> None:
        if all("hi" in log.read_text() for log in logs):
            one._stop.set("SIGTERM")

    one._look = stop_when_all_are_there
    assert not one.run()
    assert [log.read_text() for log in logs] == ["hi\nbye\n"] * 2
    assert "role_died" not in (tmp_path / "notes").read_text()


def test_a_signal_to_a_role_that_has_just_ended_leaves_its_end_to_be_found(tmp_path: Path) -> None:
    one = Child(program("print('bye')"), tmp_path / "log")
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)  # has ended, and nobody has asked yet
    one.signal(signal.SIGTERM)
    ended = one.poll()
    assert ended is not None
    assert (ended.code, ended.last_lines) == (0, ("bye",))
