"""Starting real `slipstream train` processes on the tiny recipe, and reading what they left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TINY = Path(__file__).with_name("tiny.toml")
MODES = {
    "sync": ("mode.kind=sync", "mode.eta=0"),
    "lagged1": ("mode.kind=lagged", "mode.eta=1"),
    "lagged2": ("mode.kind=lagged", "mode.eta=2"),
    "inflight2": ("mode.kind=inflight", "mode.eta=2"),
}
PATIENCE_S = 300.0  # a deadline for hung processes, not a performance check


def command(run_dir: Path, *extra: str) -> list[str]:
    return [sys.executable, "-m", "slipstream.cli.main", "train", *extra, "--run-dir", str(run_dir)]


def start(run_dir: Path, *extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(run_dir, *extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(run_dir))


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the process, check its exit code, return its standard error."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors
    return errors


def run(run_dir: Path, *extra: str, code: int = 0) -> str:
    return finish(start(run_dir, *extra), code)


def tiny(run_dir: Path, settings: Sequence[str], code: int = 0) -> str:
    """A new run of the tiny recipe to its end."""
    return run(run_dir, str(TINY), *sets(settings), code=code)


def sets(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def signal_after(process: subprocess.Popen[str], run_dir: Path, steps: int, number: signal.Signals) -> None:
    """Send the signal once `steps` learner steps are in metrics.jsonl."""
    deadline = time.monotonic() + PATIENCE_S
    while len(rows(run_dir / "metrics.jsonl")) < steps:
        assert process.poll() is None, f"the run ended before step {steps}: {process.communicate()[1]}"
        assert time.monotonic() < deadline, f"no step {steps} within {PATIENCE_S} s"
        time.sleep(0.01)
    process.send_signal(number)


def rows(path: Path) -> list[dict[str, Any]]:
    """Complete rows of a JSONL file that may be growing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def environment(run_dir: Path) -> dict[str, str]:
    """One compilation cache for all runs of a test session."""
    return {**os.environ, "SLIPSTREAM_CACHE": str(run_dir.parent.parent / "cache")}
